//! CPU time, memory and open files of this process, under the names that Prometheus's client
//! libraries give them.
//!
//! Read from `/proc`. The crate `metrics-process` shows whole seconds of CPU time, and makes
//! callgrind abort, by which the gate counts instructions. Where there is no `/proc`, nothing is
//! shown.

use std::fmt::Write;
use std::fs;

/// Ticks of `/proc` in a second: `USER_HZ`, which is 100 on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// Values of the process. Those that can't be read are missing.
#[derive(Debug, Default, PartialEq)]
struct Process {
    cpu_s: Option<f64>,
    /// In Unix seconds.
    start_s: Option<f64>,
    threads: Option<f64>,
    virtual_bytes: Option<f64>,
    resident_bytes: Option<f64>,
    open_files: Option<f64>,
    most_files: Option<f64>,
}

/// The metrics as text.
pub(super) fn render() -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let mut process =
        Process::read(&read("self/stat"), &read("stat"), &read("self/status"), &read("self/limits"));
    process.open_files = open_files();
    process.text()
}

/// Number of open files. Since Linux 6.2 the folder's size says it.
fn open_files() -> Option<f64> {
    let folder = "/proc/self/fd";
    match fs::metadata(folder).ok()?.len() {
        // Its own descriptor is among the entries.
        0 => Some(fs::read_dir(folder).ok()?.count().saturating_sub(1) as f64),
        count => Some(count as f64),
    }
}

impl Process {
    /// Reads the texts of `/proc/self/stat`, `/proc/stat`, `/proc/self/status` and
    /// `/proc/self/limits` (proc(5)).
    fn read(stat: &str, system: &str, status: &str, limits: &str) -> Process {
        // The program's name is in brackets, and may hold anything.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        // The first field behind the name is the third of all.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let line = |text: &str, start: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        };
        let boot_s = line(system, "btime ");
        Process {
            cpu_s: field(14).zip(field(15)).map(|(user, kernel)| (user + kernel) / TICKS_PER_S),
            start_s: field(22).zip(boot_s).map(|(ticks, boot_s)| boot_s + ticks / TICKS_PER_S),
            threads: field(20),
            virtual_bytes: field(23),
            resident_bytes: line(status, "VmRSS:").map(|kib| kib * 1024.0),
            open_files: None,
            most_files: line(limits, "Max open files"),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("process_cpu_seconds_total", "counter", "User and system CPU time", self.cpu_s),
            ("process_start_time_seconds", "gauge", "Start of the process, in Unix seconds", self.start_s),
            ("process_threads", "gauge", "Threads of the process", self.threads),
            ("process_virtual_memory_bytes", "gauge", "Virtual memory", self.virtual_bytes),
            ("process_resident_memory_bytes", "gauge", "Resident memory", self.resident_bytes),
            ("process_open_fds", "gauge", "Open files", self.open_files),
            ("process_max_fds", "gauge", "Soft limit of open files", self.most_files),
        ] {
            if let Some(value) = value {
                // Writing to a string does not fail.
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_read() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 0 0 250 50 0 0 20 0 5 0 4000 8192000 300 184467";
        let system = "cpu  1 2 3\nbtime 1700000000\nprocesses 9\n";
        let status = "Name:\tpd-proxy\nVmSize:\t    8000 kB\nVmRSS:\t    1200 kB\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 4096                 files     \n";
        let process = Process::read(stat, system, status, limits);
        let expected = Process {
            cpu_s: Some(3.0),
            start_s: Some(1_700_000_040.0),
            threads: Some(5.0),
            virtual_bytes: Some(8_192_000.0),
            resident_bytes: Some(1_228_800.0),
            open_files: None,
            most_files: Some(1_024.0),
        };
        assert_eq!(process, expected);
        assert!(
            process
                .text()
                .contains("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 3\n")
        );
    }

    #[test]
    fn unreadable_file_is_left_out() {
        assert_eq!(Process::read("", "", "", ""), Process::default());
        assert_eq!(Process::default().text(), "");
        assert_eq!(Process::read("7 (a", "btime x", "VmRSS:", "Max open files unlimited").text(), "");
    }
}
