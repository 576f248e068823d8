//! Test hosts: network namespaces of this machine, connected to a bridge in a namespace of its own. They have host names and addresses,
//! and their links can be taken down.
//!
//! A process that waits for the end of its input keeps each namespace alive, so the kernel removes everything when the test ends, even if
//! it crashes. Nothing outside the namespaces changes, so tests do not affect each other.
//!
//! Requires `unshare` and `nsenter` (util-linux), `hostname`, `ip` (iproute2), and either root or a kernel that allows unprivileged user
//! namespaces.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command, Stdio};

use crate::processes::command;

/// Hosts whose `eth0` is connected to one switch.
pub struct Hosts {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

/// A namespace, which exists until this is dropped.
struct Namespace {
    holder: Child,
    /// The command that enters it, without the pid and the program.
    enter: &'static [&'static str],
}

const ENTER: &[&str] = &["nsenter", "--net", "--uts", "--target"];
/// For unprivileged users, who are root in a user namespace.
const ENTER_AS_USER: &[&str] = &["nsenter", "--user", "--preserve-credentials", "--net", "--uts", "--target"];

/// Hosts have one-letter names.
const HOSTS_MAX: usize = 26;

impl Hosts {
    /// Creates `count` hosts, named `a`, `b`, ...; or says why this machine allows none.
    ///
    /// # Panics
    /// If `count` is above 26.
    pub fn new(count: usize) -> Result<Hosts, String> {
        assert!(count <= HOSTS_MAX, "hosts have one-letter names");
        let switch = Namespace::new(&[], "switch", ENTER)
            .or_else(|_| Namespace::new(&["--user", "--map-root-user"], "switch", ENTER_AS_USER))?;
        let mut hosts = Hosts { switch, hosts: Vec::new() };
        hosts.switch.ip("link add bridge type bridge")?;
        hosts.switch.ip("link set bridge up")?;
        for host in 0..count {
            let namespace = hosts.switch.another(&Hosts::name(host))?;
            hosts.switch.ip(&format!(
                "link add port{host} type veth peer name eth0 netns {}",
                namespace.holder.id()
            ))?;
            hosts.switch.ip(&format!("link set port{host} master bridge up"))?;
            namespace.ip("link set lo up")?;
            namespace.ip(&format!("addr add {}/24 dev eth0", Hosts::ipv4(host)))?;
            // No other host can have the same address, so duplicate detection is off.
            namespace.ip(&format!("addr add {}/64 dev eth0 nodad", Hosts::ipv6(host)))?;
            namespace.ip("link set eth0 up")?;
            hosts.hosts.push(namespace);
        }
        Ok(hosts)
    }

    /// The name of a host.
    pub fn name(host: usize) -> String {
        char::from(b'a' + host as u8).to_string()
    }

    /// The IPv4 address of a host's `eth0`.
    pub fn ipv4(host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 7, 0, 1 + host as u8)
    }

    /// The IPv6 address of a host's `eth0`.
    pub fn ipv6(host: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 1 + host as u16)
    }

    /// A command that runs a program on a host. The spawned process is the program itself.
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.hosts[host].command();
        command.arg(program);
        command
    }

    /// A command prefix that, followed by [`Hosts::number`], runs a command on a host.
    pub fn remote_shell(&self) -> String {
        self.switch.enter.join(" ")
    }

    /// The number of a host for [`Hosts::remote_shell`].
    pub fn number(&self, host: usize) -> u32 {
        self.hosts[host].holder.id()
    }

    /// Runs `ip` on a host.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, host: usize, arguments: &str) {
        self.hosts[host].ip(arguments).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Connects two hosts directly, by interfaces of this name.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn wire(&self, [one, other]: [usize; 2], interface: &str) {
        let peer = self.number(other);
        self.ip(one, &format!("link add {interface} type veth peer name {interface} netns {peer}"));
    }

    /// Takes down the link of a host's `eth0`. The host sees the loss of carrier.
    pub fn pull(&self, host: usize) {
        self.set_port(host, "down");
    }

    /// Brings the link up again.
    pub fn plug(&self, host: usize) {
        self.set_port(host, "up");
    }

    /// Drops all packets to and from a host, as a firewall would. The host is not notified.
    pub fn cut(&self, host: usize) {
        self.set_port(host, "nomaster");
    }

    fn set_port(&self, host: usize, how: &str) {
        self.switch.ip(&format!("link set port{host} {how}")).unwrap_or_else(|why| panic!("{why}"));
    }
}

impl Namespace {
    fn new(unshare: &[&str], name: &str, enter: &'static [&'static str]) -> Result<Namespace, String> {
        let mut command = command("unshare");
        command.args(unshare);
        Namespace::held_by(command, name, enter)
    }

    /// A namespace with the same owner.
    fn another(&self, name: &str) -> Result<Namespace, String> {
        if self.enter == ENTER {
            return Namespace::new(&[], name, ENTER);
        }
        let mut command = command("nsenter");
        let target = self.holder.id().to_string();
        command.args(["--user", "--preserve-credentials", "--target", &target, "unshare"]);
        Namespace::held_by(command, name, self.enter)
    }

    fn held_by(
        mut command: Command,
        name: &str,
        enter: &'static [&'static str],
    ) -> Result<Namespace, String> {
        let script = format!("hostname {name} && ip link show lo >/dev/null && echo ready && exec cat");
        let holder = command
            .args(["--net", "--uts", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut namespace = Namespace { holder, enter };
        let mut line = String::new();
        let output = namespace.holder.stdout.take();
        let _ = output.map(|output| BufReader::new(output).read_line(&mut line));
        if line == "ready\n" {
            return Ok(namespace);
        }
        let mut why = String::new();
        let errors = namespace.holder.stderr.take();
        let _ = errors.map(|errors| std::io::Read::read_to_string(&mut BufReader::new(errors), &mut why));
        Err(format!("no namespaces here: {}", why.trim()))
    }

    fn command(&self) -> Command {
        let mut command = command(self.enter[0]);
        command.args(&self.enter[1..]).arg(self.holder.id().to_string());
        command
    }

    fn ip(&self, arguments: &str) -> Result<(), String> {
        let done = self.command().arg("ip").args(arguments.split_whitespace()).output();
        let done = done.map_err(|error| format!("nsenter: {error}"))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim())),
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Both fail only if the process has exited.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
