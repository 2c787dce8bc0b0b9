use super::*;

const MIB: u64 = 1 << 20;

fn at(seconds: u64) -> Instant {
    Instant(0) + Duration::from_secs(seconds)
}

fn memory(available: u64) -> [(Signal, Level); 1] {
    [(Signal::Memory, Level { available: available * MIB, capacity: 512 * MIB })]
}

#[test]
fn default_thresholds_are_the_kubelets_and_smaller_on_small_boards_and_large_disks() {
    let thresholds = Thresholds::default();
    for (signal, capacity, expected) in [
        (Signal::Memory, 64 * MIB, 4 * MIB),
        (Signal::Memory, 128 * MIB, 8 * MIB),
        (Signal::Memory, 512 * MIB, 32 * MIB),
        (Signal::AllocatableMemory, 256 * MIB, 16 * MIB),
        (Signal::Memory, 8192 * MIB, 100 * MIB),
        (Signal::NodeFs, 4000 * MIB, 400 * MIB),
        (Signal::ImageFs, 4000 * MIB, 600 * MIB),
        (Signal::ImageFs, 252_000 * MIB, 1024 * MIB),
        (Signal::NodeFsInodes, 1000, 50),
    ] {
        assert_eq!(thresholds.of(signal, capacity), Some(expected), "{signal:?} of {capacity}");
    }
    assert_eq!(thresholds.of(Signal::Pid, 32_768), None);
}

#[test]
fn thresholds_are_parsed_as_a_kubelets_and_errors_say_what_would_be_right() {
    let of = |text: &str, signal, capacity| Thresholds::parse(text).expect(text).of(signal, capacity);
    let text = "memory.available<64Mi, nodefs.available<7.5%,pid.available<1k";
    assert_eq!(of(text, Signal::Memory, 1), Some(64 * MIB));
    assert_eq!(of(text, Signal::AllocatableMemory, 1), Some(64 * MIB));
    assert_eq!(of(text, Signal::NodeFs, 2000), Some(150));
    assert_eq!(of(text, Signal::Pid, 32_768), Some(1000));
    assert_eq!(of(text, Signal::ImageFs, 1000), None);
    assert_eq!(of("", Signal::Memory, 1000), None);
    assert_eq!(of("nodefs.available<0%", Signal::NodeFs, 1000), Some(0));
    for (text, why) in [
        ("memory.available", "invalid threshold \"memory.available\": must be SIGNAL<QUANTITY"),
        (
            "memory.free<1Mi",
            "unknown signal \"memory.free\": must be one of memory.available, nodefs.available,",
        ),
        ("memory.available<1Mi,memory.available<2Mi", "signal memory.available has several thresholds"),
        ("memory.available<much", "invalid value \"much\" for memory.available: must be a quantity"),
        ("nodefs.available<101%", "invalid value \"101%\" for nodefs.available"),
        ("nodefs.available<-1%", "invalid value \"-1%\" for nodefs.available"),
        ("memory.available<-1", "invalid value \"-1\" for memory.available"),
    ] {
        let found = Thresholds::parse(text).expect_err(text);
        assert!(found.starts_with(why), "{found}");
    }
}

#[test]
fn a_condition_outlasts_its_threshold_by_the_transition_period_and_an_idle_node_never_wakes() {
    let mut pressure = Pressure::new(Thresholds::default(), Duration::from_secs(300), at(0));
    assert!(!pressure.begin(at(8)), "a node that starts has other things to do");
    assert!(pressure.begin(at(9)) && !pressure.begin(at(30)), "one measurement at a time");
    assert_eq!(pressure.measured(at(30), &memory(32)), None);
    pressure.relieved(at(30));
    assert_eq!((pressure.wake_at(), pressure.present()), (None, vec![]));

    assert!(!pressure.begin(at(38)) && pressure.begin(at(39)));
    let met = pressure.measured(at(39), &memory(31)).expect("one MiB is missing");
    assert_eq!((met.signal, met.threshold, met.available), (Signal::Memory, 32 * MIB, 31 * MIB));
    assert_eq!(pressure.present(), [NodeCondition::MemoryPressure]);
    pressure.relieved(at(40));
    assert_eq!(pressure.wake_at(), Some(at(50)));

    // The threshold is met no more: the next measurement is that which ends the condition.
    assert!(pressure.begin(at(50)));
    assert_eq!(pressure.measured(at(50), &memory(40)), None);
    pressure.relieved(at(50));
    assert_eq!(
        (pressure.wake_at(), pressure.present()),
        (Some(at(339)), vec![NodeCondition::MemoryPressure])
    );
    assert!(pressure.begin(at(339)));
    assert_eq!(pressure.measured(at(339), &memory(40)), None);
    pressure.relieved(at(339));
    assert_eq!((pressure.wake_at(), pressure.present()), (None, vec![]));
    let (_, is_true, since) = pressure.conditions().next().expect("it comes first");
    assert_eq!((is_true, since), (false, at(339)));
}

#[test]
fn processes_that_wait_for_memory_are_noticed_within_a_second() {
    let mut pressure = Pressure::new(Thresholds::default(), Duration::from_secs(300), at(0));
    assert!(!pressure.begin(at(2)));
    pressure.stalled();
    assert_eq!(pressure.wake_at(), Some(at(1)));
    assert!(pressure.begin(at(2)));
    pressure.stalled();
    assert_eq!(pressure.wake_at(), None, "the measurement is under way");
    pressure.relieved(at(2));
    assert_eq!(pressure.wake_at(), Some(at(3)));
    assert!(pressure.begin(at(3)));
    pressure.relieved(at(3));
    assert_eq!(pressure.wake_at(), None);
    assert!(!pressure.begin(at(11)) && pressure.begin(at(12)));
}

#[test]
fn memory_comes_before_disks_and_disks_of_nothing_are_ignored() {
    let mut pressure = Pressure::new(Thresholds::default(), Duration::from_secs(300), at(0));
    let level = |available| Level { available, capacity: 1000 };
    let levels = [
        (Signal::ImageFs, level(149)),
        (Signal::NodeFsInodes, Level { available: 0, capacity: 0 }),
        (Signal::NodeFs, level(100)),
        (Signal::Memory, level(1)),
    ];
    assert_eq!(pressure.measured(at(9), &levels).map(|met| met.signal), Some(Signal::Memory));
    assert_eq!(pressure.present(), [NodeCondition::MemoryPressure, NodeCondition::DiskPressure]);
    let met = pressure.thresholds().met(&levels[..3]).expect("the images' disk is full");
    assert_eq!((met.signal, met.threshold), (Signal::ImageFs, 150));
}
