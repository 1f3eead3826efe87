//! The process of a proxy that is measured, and free ports for it.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest time that a process may take to end when it is asked to.
const END: Duration = Duration::from_secs(3);
/// Ports for proxies: below those that systems assign by themselves.
const PORTS: Range<u16> = 12_000..32_000;
/// Pause between checks that the process has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Last bytes of a process's output that are shown when it does not work.
const SHOWN_BYTES: usize = 800;

/// A process and all that it starts, in a process group of its own, which is ended on drop.
#[derive(Debug)]
pub(crate) struct Started {
    child: Child,
    log: PathBuf,
}

impl Started {
    /// Starts a command, whose output goes to a file in `work`.
    ///
    /// # Errors
    /// The program can't be started, or the file can't be created.
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

    /// Id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True if the process has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns how the process ended, if it has, and the end of its output.
    pub(crate) fn said(&mut self) -> String {
        let ended = self.child.try_wait().ok().flatten().map(|status| format!("{status}. "));
        let text = std::fs::read(&self.log).unwrap_or_default();
        let from = text.len().saturating_sub(SHOWN_BYTES);
        let printed = String::from_utf8_lossy(text.get(from..).unwrap_or_default());
        format!("{}{}", ended.unwrap_or_default(), printed.trim())
    }

    /// Signals the whole group.
    fn signal(&self, name: &str) {
        // Uses the shell's builtin: not every system has a program of this name.
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
        // Ends the rest of the group, and the process itself if it has not ended.
        self.signal("KILL");
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Finds `count` free ports of this host, below those that the system assigns by itself.
///
/// # Errors
/// Fewer ports are free.
pub(crate) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let all = PORTS.end - PORTS.start;
    // Starts at another port each time, since other processes may look for some, too.
    let from = u16::try_from(since.subsec_micros() % u32::from(all)).unwrap_or_default();
    let each = (0..all).map(|step| PORTS.start + (from + step) % all);
    let free = each.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    let found: Vec<u16> = free.take(count).collect();
    if found.len() == count { Ok(found) } else { Err(io::ErrorKind::AddrNotAvailable.into()) }
}
