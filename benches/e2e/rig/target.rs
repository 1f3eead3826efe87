//! The proxy that is measured: a process of ours, or one that runs already.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a process may take to end when it is asked to.
const END: Duration = Duration::from_secs(3);
/// Ports for proxies: below those that systems give to whoever asks for any.
const PORTS: Range<u16> = 12_000..32_000;
/// Between looks whether it has.
const LOOK: Duration = Duration::from_millis(20);
/// Of what a process has printed, what is shown when it does not work.
const SHOWN_BYTES: usize = 800;

/// A process and all that it starts, in a group of its own; ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Started {
    child: Child,
    log: PathBuf,
}

impl Started {
    /// Starts a command, whose output goes to a file in `work`.
    ///
    /// # Errors
    /// There is no such program.
    pub(crate) fn new(words: &[String], work: &Path) -> io::Result<Started> {
        let log = work.join("proxy.log");
        let out = File::create(&log)?;
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .map_err(|e| io::Error::other(format!("{program}: {e}")))?;
        Ok(Started { child, log })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, if it has, and the end of what it has printed.
    pub(crate) fn said(&mut self) -> String {
        let ended = self.child.try_wait().ok().flatten().map(|status| format!("{status}. "));
        let text = std::fs::read(&self.log).unwrap_or_default();
        let from = text.len().saturating_sub(SHOWN_BYTES);
        let printed = String::from_utf8_lossy(text.get(from..).unwrap_or_default());
        format!("{}{}", ended.unwrap_or_default(), printed.trim())
    }

    /// Signals the whole group.
    fn signal(&self, name: &str) {
        // The shell's own: not everywhere is there a program of this name.
        let command = format!("kill -s {name} -- -{}", self.pid());
        drop(Command::new("sh").args(["-c", &command]).stdout(Stdio::null()).stderr(Stdio::null()).status());
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let until = Instant::now() + END;
        self.signal("TERM");
        while !self.is_over() && Instant::now() < until {
            thread::sleep(LOOK);
        }
        // What else is in the group; and if it has not ended, it too.
        self.signal("KILL");
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// So many ports of this host that are free, and that nobody gets who asks the system for any.
///
/// # Errors
/// There are not so many.
pub(crate) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let all = PORTS.end - PORTS.start;
    // Somewhere else each time: others may look for some, too.
    let from = u16::try_from(since.subsec_micros() % u32::from(all)).unwrap_or_default();
    let each = (0..all).map(|step| PORTS.start + (from + step) % all);
    let free = each.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    let found: Vec<u16> = free.take(count).collect();
    if found.len() == count { Ok(found) } else { Err(io::ErrorKind::AddrNotAvailable.into()) }
}
