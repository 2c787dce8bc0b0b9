use nodlet_fuzz::cases;

use super::*;

/// Runs a program as the kernel does.
fn run(config: &SeccompConfig, audit: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let load = |offset: u32| match offset {
        NUMBER => number,
        ARCHITECTURE => audit,
        _ => {
            let argument = arguments[(offset - ARGUMENTS) as usize / 8];
            if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
        }
    };
    let (mut at, mut accumulator) = (0usize, 0u32);
    loop {
        let word = config.program[at];
        let (code, value) = (word as u16, (word >> 32) as u32);
        let (if_true, if_false) = (word >> 16 & 0xff, word >> 24 & 0xff);
        let branch = |met: bool| (if met { if_true } else { if_false }) as usize;
        at += 1;
        match code {
            LOAD => accumulator = load(value),
            AND => accumulator &= value,
            JUMP => at += value as usize,
            IF_EQUAL => at += branch(accumulator == value),
            IF_GREATER => at += branch(accumulator > value),
            IF_GREATER_OR_EQUAL => at += branch(accumulator >= value),
            RETURN => return value,
            other => panic!("{other:#x}"),
        }
    }
}

const ALL: [(&str, &Processor); 4] =
    [("x86-64", &X86_64), ("aarch64", &AARCH64), ("arm", &ARM), ("riscv64", &RISCV64)];

fn abis(processor: &Processor) -> impl Iterator<Item = &Abi> {
    std::iter::once(&processor.native).chain(&processor.compat)
}

fn call(config: &SeccompConfig, abi: &Abi, name: &str, arguments: [u64; 6]) -> u32 {
    let index = table::index_of(name).unwrap_or_else(|| panic!("{name}"));
    run(config, abi.audit, table::number(abi.numbers, index).unwrap_or_else(|| panic!("{name}")), arguments)
}

fn caps(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("CAP_{name}")).collect()
}

/// Compiles a profile from JSON for x86-64.
fn from_text(text: &[u8], capabilities: &[String]) -> Result<SeccompConfig, String> {
    compile(&profile::parse(text, capabilities, (6, 1), &X86_64)?, &X86_64)
}

#[test]
fn the_table_agrees_with_the_kernel_of_this_processor() {
    let numbers = THIS.native.numbers;
    let number = |name| table::number(numbers, table::index_of(name).unwrap());
    for (name, expected) in [
        ("read", libc::SYS_read),
        ("clone3", libc::SYS_clone3),
        ("unshare", libc::SYS_unshare),
        ("keyctl", libc::SYS_keyctl),
        ("openat2", libc::SYS_openat2),
        ("ptrace", libc::SYS_ptrace),
        ("mount", libc::SYS_mount),
    ] {
        assert_eq!(number(name), u32::try_from(expected).ok(), "{name}");
    }
    let names: Vec<&str> = table::NAMES.split(' ').collect();
    assert_eq!(names.len(), COUNT);
    assert!(names.is_sorted());
    for name in table::X32.split(' ') {
        assert!(names.contains(&name), "{name}");
    }
    for (_, processor) in ALL {
        for abi in abis(processor) {
            let numbers = (0..COUNT).filter_map(|call| table::number(abi.numbers, call));
            assert!(numbers.map(|number| number % FIRST_OF_ARM).all(|number| number < PLACES));
        }
    }
}

#[test]
fn every_system_call_has_the_default_profiles_action_on_every_abi() {
    let own = caps(&["CHOWN", "SYS_CHROOT", "SYS_TIME"]);
    for (name, processor) in ALL {
        let profile = default_profile(bits(&own));
        let config = compile(&profile, processor).unwrap();
        for abi in abis(processor) {
            for (index, call) in table::NAMES.split(' ').enumerate() {
                let Some(number) = table::number(abi.numbers, index) else { continue };
                // Numbers beyond the highest that the profile names are those of later kernels.
                let beyond = |name: &str| {
                    ["file_getattr", "file_setattr", "get_tls", "open_tree_attr"].contains(&name)
                };
                let expected = match table::RULES[index] {
                    b'a' | b'C' | b'D' => ALLOW,
                    b's' | b'p' | b'c' => ALLOW,
                    b'3' => ERRNO | ENOSYS,
                    _ if beyond(call) => ERRNO | ENOSYS,
                    _ => ERRNO | EPERM,
                };
                let got =
                    run(&config, abi.audit, number, [if call == "socket" { 1 } else { 0 }, 0, 0, 0, 0, 0]);
                assert_eq!(got, expected, "{name} {} {call} {number}", abi.name);
            }
            assert_eq!(run(&config, abi.audit, 9999, [0; 6]), ERRNO | ENOSYS);
        }
        assert_eq!(run(&config, 0xdead, 0, [0; 6]), KILL_THREAD);
        println!("{name}: {} instructions", config.program.len());
    }
}

#[test]
fn capabilities_open_their_calls() {
    const CASES: &str = "
        SYS_ADMIN => mount
        SYS_ADMIN => unshare
        SYS_ADMIN => clone3
        SYS_ADMIN => syslog
        SYSLOG => syslog
        BPF => bpf
        PERFMON => perf_event_open
        SYS_BOOT => reboot
        SYS_CHROOT => chroot
        SYS_MODULE => init_module
        SYS_PACCT => acct
        SYS_PTRACE => kcmp
        SYS_RAWIO => iopl
        SYS_TIME => clock_settime
        SYS_TTY_CONFIG => vhangup
        SYS_NICE => mbind
        DAC_READ_SEARCH => open_by_handle_at
    ";
    for [capability, name] in cases::<2>(CASES) {
        let without = compile(&default_profile(0), &X86_64).unwrap();
        let with = compile(&default_profile(bits(&caps(&[capability]))), &X86_64).unwrap();
        for abi in abis(&X86_64) {
            assert_ne!(call(&without, abi, name, [0; 6]), ALLOW, "{name}");
            assert_eq!(call(&with, abi, name, [0; 6]), ALLOW, "{name}");
        }
    }
}

#[test]
fn arguments_decide_on_some_calls() {
    let denied = ERRNO | EPERM;
    for (_, processor) in ALL {
        let config = compile(&default_profile(0), processor).unwrap();
        for abi in abis(processor) {
            let first = |name: &str, value: u64| call(&config, abi, name, [value, 0, 0, 0, 0, 0]);
            for domain in 0..50 {
                let expected = if [38, 40].contains(&domain) || domain > 45 { denied } else { ALLOW };
                assert_eq!(first("socket", domain), expected, "{domain}");
            }
            for (flags, expected) in
                [(0x11, ALLOW), (0x1000_0011, denied), (0x8000, ALLOW), (0x2_0000, denied)]
            {
                assert_eq!(first("clone", flags), expected, "{flags:#x}");
            }
            for (persona, expected) in [(0, ALLOW), (8, ALLOW), (0xffff_ffff, ALLOW), (4, denied)] {
                assert_eq!(first("personality", persona), expected, "{persona:#x}");
            }
        }
    }
}

#[test]
fn x32_has_its_own_numbers() {
    let config = compile(&default_profile(0), &X86_64).unwrap();
    let x32 = |number: u32| run(&config, X86_64.native.audit, X32_BIT | number, [0; 6]);
    // read, unshare, rt_sigaction, kexec_load, and one beyond.
    assert_eq!(
        [0, 272, 512, 528, 999].map(x32),
        [ALLOW, ERRNO | EPERM, ALLOW, ERRNO | EPERM, ERRNO | ENOSYS]
    );
    let config = from_text(br#"{"defaultAction": "SCMP_ACT_ALLOW"}"#, &[]).unwrap();
    assert_eq!(run(&config, X86_64.native.audit, X32_BIT, [0; 6]), KILL_THREAD);
    assert_eq!(run(&config, X86_64.native.audit, 0, [0; 6]), ALLOW);
    assert_eq!(run(&config, 0x4000_0003, 0, [0; 6]), KILL_THREAD, "the profile does not name i386");
}

#[test]
fn comparisons_are_of_64_bits() {
    let values =
        [0, 1, 5, 6, u64::from(u32::MAX), 1 << 32, (1 << 32) + 5, (5 << 32) + 5, (5 << 32) + 6, u64::MAX];
    type Holds = fn(u64, u64) -> bool;
    let operators: [(&str, Holds); 6] = [
        ("EQ", |a, b| a == b),
        ("NE", |a, b| a != b),
        ("GT", |a, b| a > b),
        ("GE", |a, b| a >= b),
        ("LT", |a, b| a < b),
        ("LE", |a, b| a <= b),
    ];
    for (name, holds) in operators {
        for value in values {
            let text = format!(
                r#"{{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{{"names": ["read"], "action": "SCMP_ACT_ALLOW",
                "args": [{{"index": 2, "value": {value}, "op": "SCMP_CMP_{name}"}},
                         {{"index": 0, "value": 7, "op": "SCMP_CMP_EQ"}}]}}]}}"#
            );
            let config = from_text(text.as_bytes(), &[]).unwrap();
            for argument in values {
                let expected = if holds(argument, value) { ALLOW } else { ERRNO | EPERM };
                let got = |first| call(&config, &X86_64.native, "read", [first, 0, argument, 0, 0, 0]);
                assert_eq!(got(7), expected, "{argument:#x} {name} {value:#x}");
                assert_eq!(got(8), ERRNO | EPERM);
            }
        }
    }
    let text = br#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
        "errnoRet": 13, "args": [{"index": 0, "value": 8589934593, "valueTwo": 8589934592, "op": "SCMP_CMP_MASKED_EQ"}]}]}"#;
    let config = from_text(text, &[]).unwrap();
    let got = |first| call(&config, &X86_64.native, "read", [first, 0, 0, 0, 0, 0]);
    assert_eq!([2 << 32, (2 << 32) + 1, 3 << 32, 0].map(got), [ERRNO | 13, ALLOW, ERRNO | 13, ALLOW]);
}

#[test]
fn conditions_on_one_argument_are_alternatives_as_in_runc() {
    let text = br#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]}]}"#;
    let config = from_text(text, &[]).unwrap();
    let got = |first| call(&config, &X86_64.native, "read", [first, 0, 0, 0, 0, 0]);
    assert_eq!([1, 2, 3].map(got), [ALLOW, ALLOW, ERRNO | EPERM]);
}

#[test]
fn dockers_entries_apply_by_capability_processor_and_kernel() {
    let text = br#"{"defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
        "syscalls": [
          {"names": ["read"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
          {"names": ["write"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
          {"names": ["open"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["amd64"], "minKernel": "4.8"}},
          {"names": ["close"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["amd64"]}},
          {"names": ["stat"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "6.2"}}]}"#;
    let outcome = |capabilities: &[String]| {
        let config = from_text(text, capabilities).unwrap();
        ["read", "write", "open", "close", "stat"].map(|name| {
            let outcomes: Vec<u32> = abis(&X86_64).map(|abi| call(&config, abi, name, [0; 6])).collect();
            assert_eq!(outcomes[0], outcomes[1], "{name}");
            outcomes[0] == ALLOW
        })
    };
    assert_eq!(outcome(&[]), [false, true, true, false, false]);
    assert_eq!(outcome(&caps(&["SYS_ADMIN"])), [true, false, true, false, false]);
}

#[test]
fn a_wrong_profile_is_rejected_with_its_field() {
    const ACTIONS: &str =
        "it must be SCMP_ACT_ and one of ALLOW, ERRNO, KILL, KILL_PROCESS, KILL_THREAD, LOG, TRACE, TRAP";
    let error = |text: &str| from_text(text.as_bytes(), &[]).err().unwrap_or_default();
    assert_eq!(error("no"), "is not JSON: expected ident at line 1 column 2");
    assert_eq!(error("[]"), "is not a JSON object");
    assert_eq!(error("{}"), format!("defaultAction: unsupported value \"\": {ACTIONS}"));
    let of = |field: &str| error(&format!(r#"{{"defaultAction": "SCMP_ACT_ALLOW", {field}}}"#));
    let listener = "SECCOMP_FILTER_FLAG_NEW_LISTENER";
    assert_eq!(
        of(&format!(r#""flags": ["{listener}"]"#)),
        format!("flags: unsupported value \"{listener}\"")
    );
    assert_eq!(of(r#""architectures": ["x86"]"#), "architectures: unsupported value \"x86\"");
    let of_call = |fields: &str| of(&format!(r#""syscalls": [{{{fields}}}]"#));
    let notify = of_call(r#""names": ["read"], "action": "SCMP_ACT_NOTIFY""#);
    assert_eq!(notify, format!("syscalls[0].action: unsupported value \"SCMP_ACT_NOTIFY\": {ACTIONS}"));
    for (fields, expected) in [
        (r#""names": ["raed"]"#, "syscalls: names no system call that this processor has"),
        (r#""names": [7]"#, "syscalls[0].names: must be names of system calls"),
        (
            r#""args": [{"index": 6, "op": "SCMP_CMP_EQ"}]"#,
            "syscalls[0].args[0].index: must be between 0 and 5",
        ),
        (r#""args": [{"index": 1, "op": "EQ"}]"#, "syscalls[0].args[0].op: unsupported value \"EQ\""),
    ] {
        assert_eq!(of_call(&format!(r#"{fields}, "action": "SCMP_ACT_ERRNO""#)), expected);
    }
    let entry =
        r#"{"names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "op": "SCMP_CMP_EQ"}]}"#;
    let error = of(&format!(r#""syscalls": [{}]"#, vec![entry; 2000].join(",")));
    assert!(error.ends_with("instructions, and the kernel accepts 4096"), "{error}");
}

#[test]
fn default_filters_are_compiled_once_for_each_set_of_capabilities_with_a_rule() {
    let (mut kept, mut compiled) = (Vec::new(), 0);
    let mut get = |capabilities: &[&str]| {
        let found = kept_default(&mut kept, bits(&caps(capabilities)), |bits| {
            compiled += 1;
            compile(&default_profile(bits), THIS).unwrap()
        });
        // The bits that select a kept filter leave out no capability that changes it.
        assert!(found == compile(&default_profile(bits(&caps(capabilities))), THIS).unwrap());
        (compiled, kept.len())
    };
    for (capabilities, expected) in [
        (&[][..], (1, 1)),
        // It has no rule.
        (&["CHOWN"], (1, 1)),
        (&["SYS_CHROOT"], (2, 2)),
        (&[], (2, 2)),
        (&["SYS_CHROOT", "CHOWN"], (2, 2)),
        (&["SYS_TIME"], (3, 3)),
        (&["SYS_BOOT"], (4, 4)),
        // In place of the one without capabilities, which was not used for longest.
        (&["SYS_NICE"], (5, MAX_DEFAULTS)),
        (&["SYS_CHROOT"], (5, MAX_DEFAULTS)),
        (&[], (6, MAX_DEFAULTS)),
    ] {
        assert_eq!(get(capabilities), expected, "{capabilities:?}");
    }
    for capability in CAPABILITIES {
        get(&[capability]);
    }
}
