//! Processes of other users cannot join, and their sockets stay where they are.
#![allow(clippy::unwrap_used)] // All of this is test.

#[path = "bootstrap/meeting.rs"]
mod meeting;

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use meeting::{
    BRIEF, DEED, PLACE, ROLE, SIZE, address, assert_passed, assert_success, exchange, meeting, role,
};
use weftlink_comm::bootstrap::{Bootstrap, BootstrapError, Refusal, Rendezvous, RendezvousAddress, Token};
use weftlink_knobs::Knobs;
use weftlink_testkit::ports::reserved_range;
use weftlink_testkit::processes::command;

/// Somebody else: the user `nobody` of every distribution.
const NOBODY: u32 = 65_534;

/// A copy of this program that every user may run, in a folder that every user may write; nothing, with the reason on the screen, where
/// this process cannot run anything as another user. Dropping it removes the folder.
struct Abroad {
    folder: PathBuf,
}

impl Abroad {
    fn new(name: &str) -> Option<Abroad> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can run a process as another user");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("weft-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), folder.join("program")).unwrap();
        for path in [folder.clone(), folder.join("program")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        Some(Abroad { folder })
    }

    /// This test again, by a user.
    fn again(&self, test: &str, user: u32) -> Command {
        let mut command = command(self.folder.join("program"));
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).current_dir(&self.folder);
        command.uid(user).gid(user).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Abroad {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn is_of_another_user(error: &BootstrapError) -> bool {
    matches!(error, BootstrapError::Refused { reason: Refusal::User { .. }, .. })
}

#[test]
fn other_users_are_refused_on_unix_sockets() {
    const TEST: &str = "other_users_are_refused_on_unix_sockets";
    if let Some((rank, meeting)) = role() {
        match std::env::var(DEED).unwrap().as_str() {
            "join" => {
                let error = Bootstrap::join(&meeting, rank).unwrap_err();
                assert!(is_of_another_user(&error), "{error}");
            }
            "listen" => {
                println!("listens");
                // Until it is killed; nobody comes.
                let _ = Bootstrap::listen(&meeting);
            }
            _ => {
                // Not our library: whatever it sends, it hears nothing.
                let mut stream = UnixStream::connect_addr(&address(&meeting)).unwrap();
                let _ = stream.write_all(b"weftlink\x63\0\0\0");
                let mut heard = Vec::new();
                let _ = stream.read_to_end(&mut heard);
                assert!(heard.is_empty(), "{heard:?}");
            }
        }
        return;
    }
    let Some(abroad) = Abroad::new("users") else { return };
    let start = |meeting: &Rendezvous, deed: &str| {
        let RendezvousAddress::Abstract(name) = &meeting.address else { panic!("{}", meeting.address) };
        let mut command = abroad.again(TEST, NOBODY);
        command.env(ROLE, "1").env(SIZE, "2").env(PLACE, name).env(DEED, deed).spawn().unwrap()
    };
    // It comes to a job that it knows the secret of. The right one joins after it.
    let joined = meeting("users-join", 2);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Bootstrap::listen(&joined).unwrap());
        assert_success(start(&joined, "join"));
        assert_success(start(&joined, "knock"));
        let one = Bootstrap::join(&joined, 1).unwrap();
        let zero = zero.join().unwrap();
        scope.spawn(|| exchange(zero));
        exchange(one);
    });
    // It has the place of a job before its rank 0.
    let taken = meeting("users-listen", 2);
    let mut child = start(&taken, "listen");
    let error = Bootstrap::join(&taken, 1).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_of_another_user(&error), "{error}");
}

#[test]
fn another_user_cannot_join_a_job_without_a_secret() {
    const TEST: &str = "another_user_cannot_join_a_job_without_a_secret";
    if std::env::var(DEED).is_ok() {
        let knobs = Knobs::from_environment().unwrap();
        return match Bootstrap::from_environment(&knobs) {
            Ok(end) => exchange(end),
            Err(error) => panic!("not in: {error}"),
        };
    }
    let Some(abroad) = Abroad::new("guess") else { return };
    let port = reserved_range().start().to_string();
    let tcp = |rank: usize| {
        let place = format!("127.0.0.1:{port}");
        vec![("RANK", rank.to_string()), ("WORLD_SIZE", "2".to_owned()), ("WEFT_RENDEZVOUS", place)]
    };
    // Everything that a rank of srun is told is known to others, but for the number of the user, which the name of the socket has.
    let job = std::process::id().to_string();
    let srun = |rank: usize| {
        let mut told = vec![("SLURM_JOB_ID", job.clone()), ("SLURM_PROCID", rank.to_string())];
        for (name, value) in [("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_NNODES", "1")] {
            told.push((name, value.to_owned()));
        }
        told
    };
    let kinds: [&dyn Fn(usize) -> Vec<(&'static str, String)>; 2] = [&tcp, &srun];
    for told in kinds {
        let start = |rank: usize, user: u32| {
            let mut command = abroad.again(TEST, user);
            command.env_clear().env(DEED, "join").env("WEFT_DEADLINE", "60").envs(told(rank)).spawn().unwrap()
        };
        let zero = start(0, 0);
        if told(1)[0].0 == "RANK" {
            let output = start(1, NOBODY).wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(
                !output.status.success() && said.contains("runs as user 0, and this one as user 65534"),
                "{said}"
            );
        }
        let one = start(1, 0);
        for rank in [zero, one] {
            let output = rank.wait_with_output().unwrap();
            assert_passed(&output);
        }
    }
}

#[test]
fn foreign_and_active_sockets_are_not_removed() {
    let Some(abroad) = Abroad::new("paths") else { return };
    let path = abroad.folder.join("socket");
    let listen = |path: &Path| {
        let place = RendezvousAddress::Path(path.to_owned());
        Bootstrap::listen(&Rendezvous::new(place, Token::new("t").unwrap(), 2, BRIEF))
            .unwrap_err()
            .to_string()
    };
    // Nobody listens there, but it is not ours.
    drop(UnixListener::bind(&path).unwrap());
    chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    let before = path.symlink_metadata().unwrap().ino();
    let error = listen(&path);
    assert!(error.contains("there is a socket of user 65534"), "{error}");
    assert_eq!(path.symlink_metadata().unwrap().ino(), before);
    // Ours, but somebody else's by the time that it is given up.
    std::fs::remove_file(&path).unwrap();
    let other = abroad.folder.join("other");
    thread::scope(|scope| {
        let place = RendezvousAddress::Path(path.clone());
        let meeting = Rendezvous::new(place, Token::new("t").unwrap(), 2, Duration::from_secs(2));
        let waits = scope.spawn(move || Bootstrap::listen(&meeting).unwrap_err());
        while !path.exists() {
            thread::sleep(Duration::from_millis(1));
        }
        let _taken = UnixListener::bind(&other).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let error = waits.join().unwrap();
        assert!(matches!(error, BootstrapError::Missing { .. }), "{error}");
        assert!(path.exists(), "another listens there now");
    });
}
