//! Supervisors with real containers. Needs root. The binary is three things: the
//! tests, the supervisor (it executes itself), and the program in the containers.

mod pod;
mod program;

use pod::Pod;

const TESTS: &[(&str, fn())] =
    &[("a_container_starts_and_its_exit_is_told", a_container_starts_and_its_exit_is_told)];

fn main() {
    let mut args = std::env::args();
    let _ = args.next();
    match args.next().as_deref() {
        Some("supervisor") => nodlet_runtime::supervisor::run(std::env::args_os().skip(2)),
        Some("program") => program::run(args),
        first => {
            let filters: Vec<&str> = first.into_iter().filter(|filter| !filter.starts_with('-')).collect();
            let mut ran = 0;
            for (name, test) in TESTS {
                if filters.iter().all(|filter| name.contains(filter)) {
                    println!("test {name} ...");
                    test();
                    println!("test {name} ... ok");
                    ran += 1;
                }
            }
            println!("\ntest result: ok. {ran} passed");
        }
    }
}

fn a_container_starts_and_its_exit_is_told() {
    let pod = Pod::new("line");
    let config = pod.container("app", &["out=to stdout", "err=to stderr", "env=GREETING", "exit=7"]);
    let (exit, output) = pod.run(&config);
    assert_eq!((exit.code, exit.signal), (7, None));
    assert!(exit.started_at <= exit.finished_at);
    for line in ["to stdout\n", "to stderr\n", "hello\n"] {
        assert!(output.contains(line), "{output}");
    }
    pod.client(|supervisor| supervisor.end()).unwrap();
    pod::wait_until("end of the supervisor", || {
        nodlet_runtime::supervisor::client::Supervisor::connect(&pod.dir).unwrap().is_none()
    });
}
