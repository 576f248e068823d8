use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What is read of the environment of a rank, written as a shell would.
fn reading<T>(text: &str, read: impl Fn(&EnvironmentSource<'_>) -> T) -> T {
    let pairs: BTreeMap<&str, &str> =
        text.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    let file = |name: &str| match name {
        "/secret" => Ok(b"0123456789abcdef0123456789abcdef\n".to_vec()),
        "/short" => Ok(b"short\n".to_vec()),
        _ => Err("No such file".to_owned()),
    };
    read(&EnvironmentSource {
        variable: &|name| pairs.get(name).map(|value| (*value).to_owned()),
        file: &file,
        user: 1000,
        process: 42,
        parent: 41,
    })
}

fn read(text: &str) -> Result<Environment, EnvironmentError> {
    reading(text, Environment::read)
}

fn refused(text: &str) -> String {
    read(text).expect_err(text).to_string()
}

fn who(text: &str) -> (Launcher, usize, usize, Option<usize>, Option<usize>, String) {
    let info = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    (info.launcher, info.rank, info.size, info.local_rank, info.local_size, info.address.to_string())
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29400 \
    TORCHELASTIC_RUN_ID=abc TORCHELASTIC_RESTART_COUNT=0";
/// As Open MPI 4.1.4 sets them.
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 OMPI_MCA_ess_base_jobid=406978561 PMIX_RANK=1 \
    PMIX_NAMESPACE=406978561";
/// As MPICH 4.0 sets them.
const MPICH: &str = "PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
const SRUN: &str = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=77 \
    SLURM_STEP_ID=3 SLURM_STEP_NODELIST=node[01-02] SLURM_STEP_TASKS_PER_NODE=4(x2)";

#[test]
fn torchrun_keeps_its_port() {
    let info = who(TORCHRUN);
    assert_eq!(info, (Launcher::Torchrun, 5, 8, Some(1), Some(4), "10.0.0.1:29401-29416".into()));
    let last = TORCHRUN.replace("29400", "65534");
    assert_eq!(who(&last).5, "10.0.0.1:65535");
    let none = TORCHRUN.replace("29400", "65535");
    assert!(refused(&none).starts_with("MASTER_PORT is \"65535\", and should be a port from 1 to 65534"));
    let six = TORCHRUN.replace("10.0.0.1", "fd00::1");
    assert_eq!(who(&six).5, "[fd00::1]:29401-29416");
}

#[test]
fn weft_run_sets_the_address() {
    let text = format!("{TORCHRUN} WEFT_JOB=w-1 WEFT_RENDEZVOUS=127.0.0.1:4000 WEFT_SECRET=0123456789abcdef");
    assert_eq!(who(&text), (Launcher::WeftRun, 5, 8, Some(1), Some(4), "127.0.0.1:4000".into()));
    let info = read(&text).unwrap();
    assert!(!info.secret_is_guessable);
    assert_eq!(info.secret.bytes(), b"0123456789abcdef");
    assert_eq!(format!("{:?}", info.secret), "Secret(..)");
}

#[test]
fn weft_run_tells_the_true_local_ranks() {
    let alone = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 WEFT_JOB=mine WEFT_RENDEZVOUS=a:7 \
        WEFT_SECRET=0123456789abcdef WEFT_LOCAL_RANK=1 WEFT_LOCAL_WORLD_SIZE=4";
    assert_eq!(who(alone), (Launcher::WeftRun, 5, 8, Some(1), Some(4), "a:7".into()));
}

#[test]
fn mpi_on_one_host_needs_no_address() {
    let info = who(OPEN_MPI);
    assert_eq!(info, (Launcher::OpenMpi, 1, 2, Some(1), Some(2), "@weft-open-mpi-406978561-1000".into()));
    let info = who(MPICH);
    assert_eq!(info, (Launcher::Hydra, 1, 2, Some(1), Some(2), "@weft-mpiexec-parent-41-1000".into()));
    let intel = format!("{MPICH} I_MPI_HYDRA_UUID=740b0000-c619");
    assert_eq!(who(&intel).5, "@weft-mpiexec-740b0000-c619-1000");
}

#[test]
fn mpi_on_several_hosts_gets_advice() {
    let error =
        refused(&OPEN_MPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1").replace("LOCAL_RANK=1", "LOCAL_RANK=0"));
    assert_eq!(
        error,
        "mpirun started 2 ranks and does not say where they can meet: set WEFT_RENDEZVOUS to a host and \
         port of rank 0's host that the others can reach, for all ranks: mpirun -x WEFT_RENDEZVOUS=host0:29500 -n 8 --host \
         host0:4,host1:4 PROGRAM"
    );
    let error = refused("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1");
    assert!(error.contains("mpiexec -genv WEFT_RENDEZVOUS host0:29500"), "{error}");
    let info = who("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=h MASTER_PORT=1");
    assert_eq!(info.5, "h:2-17");
    assert!(refused("RANK=0 WORLD_SIZE=2").contains("127.0.0.1:29500 if all are on one host"));
}

#[test]
fn launchers_without_a_size() {
    let error = refused("PMIX_RANK=1 PMIX_NAMESPACE=prte-1");
    assert!(error.starts_with("PMIX_RANK is set, but WORLD_SIZE is not."), "{error}");
    let info = who("PMIX_RANK=1 PMIX_NAMESPACE=prte-1@1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2");
    assert_eq!((info.0, info.1, info.2), (Launcher::Pmi, 1, 2));
    assert!(info.5.starts_with("@weft-pmi-prte-1_1-"), "{}", info.5);
    let info = who("PMI_ID=1 PMI_PORT=h:1 WORLD_SIZE=2 WEFT_RENDEZVOUS=h:5");
    assert_eq!((info.0, info.1, info.2, info.5), (Launcher::Pmi, 1, 2, "h:5".into()));
    assert!(refused("PMI_ID=1 PMI_PORT=h:1").contains("WORLD_SIZE is not"));
}

#[test]
fn srun_uses_the_first_host() {
    let (launcher, rank, size, local_rank, local_size, place) = who(SRUN);
    assert_eq!((launcher, rank, size, local_rank, local_size), (Launcher::Slurm, 5, 8, Some(1), Some(4)));
    let RendezvousAddress::Tcp { host, ports } = read(SRUN).unwrap().address else { panic!("{place}") };
    assert_eq!(host, "node01");
    assert!(*ports.start() >= 20_000 && *ports.end() < 30_000, "{ports:?}");
    let other = read(&SRUN.replace("STEP_ID=3", "STEP_ID=4")).unwrap();
    assert_ne!(other.address.to_string(), place, "steps of one job run side by side");

    let one_host = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=77 SLURM_STEP_ID=3";
    assert_eq!(who(one_host), (Launcher::Slurm, 1, 2, None, Some(2), "@weft-srun-77.3-1000".into()));
    let even = SRUN.replace("SLURM_STEP_TASKS_PER_NODE=4(x2)", "SLURM_NTASKS_PER_NODE=4");
    assert_eq!(who(&even).4, Some(4));
    let odd = SRUN.replace("SLURM_STEP_TASKS_PER_NODE=4(x2)", "SLURM_NTASKS_PER_NODE=5");
    assert_eq!(who(&odd).4, None);

    let error = refused(&SRUN.replace("node[01-02]", "node[01-"));
    assert_eq!(
        error,
        "SLURM_STEP_NODELIST is \"node[01-\", and should be a list of hosts such as node[01-03,7]"
    );
    assert!(refused(&SRUN.replace("4(x2)", "4(")).starts_with("SLURM_STEP_TASKS_PER_NODE is \"4(\""));
    assert!(
        refused(&SRUN.replace("SLURM_STEP_NODELIST=", "X=")).contains("srun --export=ALL,WEFT_RENDEZVOUS=")
    );
    assert!(refused(&SRUN.replace("SLURM_JOB_ID=", "X=")).contains("SLURM_JOB_ID is not"));
}

#[test]
fn torch_gets_the_missing_variables() {
    let info = |text: &str| {
        let info = reading(text, torch::for_torch).unwrap_or_default();
        info.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    let srun = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node01 MASTER_PORT=";
    assert!(info(SRUN).starts_with(srun), "{}", info(SRUN));
    assert!(info(&format!("{SRUN} MASTER_ADDR=b MASTER_PORT=7")).ends_with("LOCAL_WORLD_SIZE=4"));
    let mpi = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=";
    assert!(info(OPEN_MPI).starts_with(mpi) && info(MPICH).starts_with(mpi));
    assert_ne!(info(OPEN_MPI), info(&OPEN_MPI.replace("406978561", "406978562")));
    // On several hosts nobody knows where rank 0 is, unless it is said.
    let several = MPICH.replace("SIZE=2", "SIZE=4");
    assert!(info(&several).starts_with("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_PORT="));
    let said = info(&format!("{several} WEFT_RENDEZVOUS=host0:4000"));
    assert!(said.ends_with("MASTER_ADDR=host0 MASTER_PORT=4000"), "{said}");
    assert_eq!(info(TORCHRUN), "");
    assert_eq!(info("HOME=here"), "");
}

#[test]
fn the_innermost_launcher_wins() {
    assert_eq!(who(&format!("{SRUN} {TORCHRUN}")).0, Launcher::Torchrun);
    assert_eq!(who(&format!("{SRUN} {OPEN_MPI}")).0, Launcher::OpenMpi);
    assert_eq!(who(&format!("{SRUN} {MPICH}")).0, Launcher::Hydra);
    // srun with PMI-2 or PMIx sets those as well.
    assert_eq!(who(&format!("{SRUN} PMI_RANK=5 PMI_SIZE=8")).0, Launcher::Slurm);
    assert_eq!(who(&format!("{SRUN} PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.77.3")).0, Launcher::Slurm);
    // A shell of an allocation is no step.
    assert_eq!(refused("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7"), EnvironmentError::Nobody.to_string());
    // Scripts that translate agree with what they translate.
    let translated = format!("{OPEN_MPI} RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=99");
    assert_eq!(who(&translated), (Launcher::OpenMpi, 1, 2, Some(1), Some(2), "h:100-115".into()));
}

#[test]
fn contradictions_name_both_variables() {
    assert_eq!(
        refused(&format!("{OPEN_MPI} RANK=0 WORLD_SIZE=1")),
        "RANK=0 of WORLD_SIZE=1 contradicts OMPI_COMM_WORLD_RANK=1 of 2: unset RANK and WORLD_SIZE, if they are left over \
         from something else, or the other's variables"
    );
    assert_eq!(
        refused("RANK=2 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1"),
        "RANK=2 contradicts WORLD_SIZE=2: one of them is not of this job"
    );
    let local = refused(&TORCHRUN.replace("LOCAL_RANK=1", "LOCAL_RANK=4"));
    assert!(local.starts_with("LOCAL_RANK=4 contradicts LOCAL_WORLD_SIZE=4"), "{local}");
    let local = refused(&TORCHRUN.replace("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=9"));
    assert!(local.starts_with("LOCAL_WORLD_SIZE=9 contradicts WORLD_SIZE=8"), "{local}");
    let both = refused(&format!("{TORCHRUN} WEFT_SECRET=0123456789abcdef WEFT_SECRET_FILE=/secret"));
    assert_eq!(both, "WEFT_SECRET and WEFT_SECRET_FILE=/secret are both set: keep one of them");
}

#[test]
fn invalid_variables_are_named() {
    assert!(refused("").starts_with("this process was not started as a rank of a job"));
    assert!(refused("RANK=0").starts_with("RANK is set, but WORLD_SIZE is not."));
    assert!(refused("WORLD_SIZE=2").starts_with("WORLD_SIZE is set, but RANK is not."));
    let error = refused("RANK=x WORLD_SIZE=2");
    assert_eq!(error, "RANK is \"x\", and should be a number of at least 0");
    assert!(refused("RANK=+1 WORLD_SIZE=2").starts_with("RANK is \"+1\""));
    assert!(refused("RANK=-1 WORLD_SIZE=2").starts_with("RANK is \"-1\""));
    assert!(refused("RANK=0 WORLD_SIZE=0").starts_with("WORLD_SIZE is \"0\""));
    assert!(refused("RANK=0 WORLD_SIZE=99999999999999999999").starts_with("WORLD_SIZE is \"9999"));
    assert!(
        refused("OMPI_COMM_WORLD_RANK=0")
            .starts_with("OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE")
    );
    assert!(refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h").contains("MASTER_PORT is not"));
    assert!(refused("RANK=0 WORLD_SIZE=2 MASTER_PORT=1").contains("MASTER_ADDR is not"));
    // Empty is unset.
    assert!(refused("RANK= WORLD_SIZE=2").starts_with("WORLD_SIZE is set, but RANK is not."));
}

#[test]
fn a_single_rank_needs_no_rendezvous() {
    assert_eq!(who("RANK=0 WORLD_SIZE=1").5, "@weft-variables-alone-42-1000");
}

#[test]
fn addresses() {
    let place = |text: &str| who(&format!("RANK=0 WORLD_SIZE=2 WEFT_RENDEZVOUS={text}")).5;
    assert_eq!(place("host:1"), "host:1");
    assert_eq!(place("10.0.0.1:29500-29510"), "10.0.0.1:29500-29510");
    assert_eq!(place("[::1]:29500"), "[::1]:29500");
    assert_eq!(place("[fe80::1%eth0]:1-2"), "[fe80::1%eth0]:1-2");
    let bad = [
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:2-1",
        "host:1-",
        "host:+1",
        "[::1]",
        "[::1]1",
        "[x]:1",
    ];
    for bad in bad {
        let error = refused(&format!("RANK=0 WORLD_SIZE=2 WEFT_RENDEZVOUS={bad}"));
        assert!(error.starts_with(&format!("WEFT_RENDEZVOUS is {bad:?}, and should be ")), "{bad}: {error}");
    }
    assert!(
        refused("RANK=0 WORLD_SIZE=2 WEFT_RENDEZVOUS=::1:29500").contains("with the address in brackets")
    );
}

#[test]
fn secrets_from_files_and_defaults() {
    let info = read(&format!("{TORCHRUN} WEFT_SECRET_FILE=/secret")).unwrap();
    assert_eq!(info.secret.bytes(), b"0123456789abcdef0123456789abcdef", "without the newline");
    assert!(!info.secret_is_guessable);
    let error = refused(&format!("{TORCHRUN} WEFT_SECRET_FILE=/none"));
    assert!(error.starts_with("WEFT_SECRET_FILE=/none cannot be read: No such file."), "{error}");
    let error = refused(&format!("{TORCHRUN} WEFT_SECRET_FILE=/short"));
    assert!(
        error.starts_with("the secret of WEFT_SECRET_FILE has 5 bytes; it must have 16 to 4096"),
        "{error}"
    );
    let error = refused(&format!("{TORCHRUN} WEFT_SECRET=hunter2"));
    assert!(!error.contains("hunter2"), "{error}");

    let derived = read(TORCHRUN).unwrap();
    assert!(derived.secret_is_guessable);
    let other_rank =
        read(&TORCHRUN.replace("RANK=5", "RANK=6").replace("LOCAL_RANK=1", "LOCAL_RANK=2")).unwrap();
    assert_eq!(derived.secret, other_rank.secret, "ranks of one job know each other");
    for (from, to) in
        [("RUN_ID=abc", "RUN_ID=abd"), ("RESTART_COUNT=0", "RESTART_COUNT=1"), ("29400", "29401")]
    {
        assert_ne!(derived.secret, read(&TORCHRUN.replace(from, to)).unwrap().secret, "{to}");
    }
}

#[test]
fn names_of_sockets_fit() {
    let long = OPEN_MPI.replace("PMIX_NAMESPACE=406978561", &format!("PMIX_NAMESPACE={}", "é".repeat(300)));
    let RendezvousAddress::Abstract(name) = read(&long).unwrap().address else { panic!("{long}") };
    assert!(name.len() <= 107 && name.is_ascii(), "{name}");
    let other = read(&long.replace("éé", "éè")).unwrap().address;
    assert_ne!(other, RendezvousAddress::Abstract(name));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(values in proptest::collection::vec((0_usize..12, "[0-9a-z:\\[\\]()\\-,é]{0,12}"), 0..12)) {
        const NAMES: [&str; 12] = [
            "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
            "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "WEFT_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT",
        ];
        let text: Vec<String> = values.iter().map(|(name, value)| format!("{}={value}", NAMES[*name])).collect();
        if let Ok(info) = read(&text.join(" ")) {
            prop_assert!(info.rank < info.size);
        }
    }
}
