//! `taut top` in a terminal emulated by tmux.

use std::process::Command;

use rustix::process::{Pid, Signal};
use taut_sys_testing::skip;

use crate::host::Host;

/// A tmux session with a program in it. Dropping it ends the session.
struct Terminal {
    dir: tempfile::TempDir,
}

impl Terminal {
    fn start(width: u16, height: u16, program: &[&str]) -> Self {
        let terminal = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let (width, height) = (width.to_string(), height.to_string());
        let mut args = vec!["new-session", "-d", "-x", &width, "-y", &height, "--"];
        args.extend(program);
        terminal.tmux(&args);
        // Keep the screen after the program has ended.
        terminal.tmux(&["set-option", "-g", "remain-on-exit", "on"]);
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(self.dir.path().join("socket"))
            .args(["-f", "/dev/null"]);
        let output = command
            .args(args)
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen satisfies `is` and returns it.
    fn until(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        // A limit for a screen that never comes; each reading takes some milliseconds.
        for _ in 0..20_000 {
            let screen = self.screen();
            if is(&screen) {
                return screen;
            }
        }
        panic!("never {what}:\n{}", self.screen());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(self.dir.path().join("socket"))
            .arg("kill-server");
        let _ = command.output();
    }
}

#[test]
fn top_lists_connections_opens_one_and_restores_the_terminal() {
    if !skip::has_programs(&["tmux"]) {
        return;
    }
    let host = Host::new("screen");
    let (client, server) = host.connection(&host.listener());
    let (near, far) = (
        client.local_addr().unwrap().to_string(),
        server.local_addr().unwrap().to_string(),
    );
    for (width, height) in [(80, 24), (200, 50)] {
        let top = format!(
            "echo before; {} top --interval 50ms --netns {}; echo left $?; exec bash --norc",
            env!("CARGO_BIN_EXE_taut"),
            host.name()
        );
        let terminal = Terminal::start(width, height, &["bash", "--norc", "-c", &top]);
        let table = terminal.until("the table", |screen| {
            screen.contains(&near) && screen.contains("idle")
        });
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("taut top: 2 connections"), "{table}");
        assert!(
            lines[1].starts_with("out ")
                && lines[2].starts_with("PEER")
                && table.contains("q quit"),
            "{table}"
        );
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= width.into()),
            "{table}"
        );

        // An invalid filter, then a valid one.
        terminal.keys(&["/", "d", "p", "o", "r", "t", "Enter"]);
        terminal.until("an error", |screen| screen.contains("expected a port"));
        let port = format!(" {}", server.local_addr().unwrap().port());
        terminal.keys(&["-l", &port]);
        terminal.keys(&["Enter"]);
        let filtered = terminal.until("one line", |screen| screen.contains(" 1 of 2 connections,"));
        assert!(filtered.contains(&far), "{filtered}");

        // The page of one connection, and back to the list.
        terminal.keys(&["Enter"]);
        // The instruments are drawn last.
        let opened = terminal.until("evidence", |screen| {
            screen.contains("It is idle.") && screen.contains("CurCwnd")
        });
        assert!(opened.contains(&format!("{near} -> {far}")), "{opened}");
        assert!(opened.contains("rtt ms"), "{opened}");
        terminal.keys(&["Escape"]);
        terminal.until("the table again", |screen| screen.contains("PEER"));

        // The terminal becomes smaller and larger again.
        terminal.tmux(&["resize-window", "-x", "60", "-y", "10"]);
        terminal.until("a smaller screen", |screen| {
            screen.lines().count() <= 10 && screen.contains("taut top") && screen.contains("q quit")
        });
        terminal.tmux(&["resize-window", "-x", "100", "-y", "30"]);
        terminal.until("a larger screen", |screen| {
            screen.lines().count() == 30 && screen.contains("q quit")
        });

        terminal.keys(&["q"]);
        let after = terminal.until("the end", |screen| screen.contains("left 0"));
        assert!(
            after.contains("before") && !after.contains("PEER"),
            "{after}"
        );
        // The terminal echoes typed text again.
        terminal.keys(&["-l", "echo seen-$((40+2))"]);
        terminal.keys(&["Enter"]);
        terminal.until("the shell", |screen| screen.contains("seen-42"));
    }
}

#[test]
fn closing_the_terminal_ends_top() {
    if !skip::has_programs(&["tmux"]) {
        return;
    }
    let host = Host::new("hangup");
    let (_client, server) = host.connection(&host.listener());
    let far = server.local_addr().unwrap().to_string();
    let top = [
        env!("CARGO_BIN_EXE_taut"),
        "top",
        "--interval",
        "50ms",
        "--netns",
        host.name(),
    ];
    // With SIGHUP and without it, as under `nohup`.
    for before in [vec![], vec!["env", "--ignore-signal=HUP"]] {
        let terminal = Terminal::start(80, 24, &[&before[..], &top].concat());
        terminal.until("the table", |screen| screen.contains(&far));
        let pid = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]);
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        drop(terminal);
        let mut wait = [rustix::event::PollFd::new(
            &ended,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let over = rustix::event::poll(&mut wait, Some(&limit)).unwrap();
        if over == 0 {
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
        }
        assert_eq!(over, 1, "{before:?}: it still runs");
    }
}

#[test]
fn a_signal_ends_top_and_restores_the_terminal() {
    if !skip::has_programs(&["tmux"]) {
        return;
    }
    let host = Host::new("killed");
    let (_client, server) = host.connection(&host.listener());
    let far = server.local_addr().unwrap().to_string();
    let top = format!(
        "{} top --interval 50ms --netns {}; echo left; exec bash --norc",
        env!("CARGO_BIN_EXE_taut"),
        host.name()
    );
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let terminal = Terminal::start(80, 24, &["bash", "--norc", "-c", &top]);
        terminal.until("the table", |screen| screen.contains(&far));
        let shell = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]);
        let shell = shell.trim();
        let children =
            std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        let top = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(top, signal).unwrap();
        let after = terminal.until("the end", |screen| screen.contains("left"));
        assert!(!after.contains("PEER"), "{signal:?}: {after}");
        terminal.keys(&["-l", "echo seen-$((40+2))"]);
        terminal.keys(&["Enter"]);
        terminal.until("the shell", |screen| screen.contains("seen-42"));
    }
}
