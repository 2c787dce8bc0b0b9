//! The words of a timeline: a sentence of calls, and the events that follow from it.
//!
//! `sim.run(5).reboot().run(9).traces("0s app#0 start; 5s app#1 start")` lets five seconds pass, cuts the power, and
//! compares the events of containers. The events of one second stand together, with commas between them.

use super::*;
use crate::time::Moment;

impl Sim {
    /// Lets time pass until this second.
    pub(crate) fn run(&mut self, second: u64) -> &mut Self {
        self.run_until(secs(second))
    }

    /// Lets time pass until the trace has this text.
    pub(crate) fn run_until_traced(&mut self, text: &str) -> &mut Self {
        while !self.trace.contains(text) {
            assert!(self.now < at(1000), "{text:?} is not in\n{}", self.trace);
            self.run_until(self.now.since(at(0)) + Duration::from_millis(10));
        }
        self
    }

    /// Sets the percentage of operations that fail.
    pub(crate) fn failures(&mut self, percentage: u64) -> &mut Self {
        self.weather.failures = percentage;
        self
    }

    /// Sets the maximum time until an answer, in seconds.
    pub(crate) fn latency(&mut self, seconds: u64) -> &mut Self {
        self.weather.latency = secs(seconds);
        self
    }

    pub(crate) fn clear_trace(&mut self) -> &mut Self {
        self.trace.clear();
        self
    }

    /// The trace as one line.
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        let mut second = "";
        for line in self.trace.lines() {
            let (stamp, event) = line.trim_start().split_once(' ').expect("a time");
            match (stamp == second, second) {
                (true, _) => story += ", ",
                (false, "") => story += &format!("{stamp} "),
                (false, _) => story += &format!("; {stamp} "),
            }
            story += event;
            second = stamp;
        }
        story
    }

    /// Checks the trace.
    #[track_caller]
    pub(crate) fn traces(&mut self, expected: &str) -> &mut Self {
        assert_eq!(self.story(), expected, "\n{}", self.log);
        self
    }

    /// Checks the last events of the trace.
    #[track_caller]
    pub(crate) fn traces_last(&mut self, expected: &str) -> &mut Self {
        let of_second = |text: &str| -> String {
            let (stamp, events) = text.split_once(' ').expect("a time");
            events.split(", ").map(|event| format!("{stamp:>5} {event}\n")).collect()
        };
        let lines: String = expected.split("; ").map(of_second).collect();
        assert!(self.trace.ends_with(&lines), "{expected:?} is not at the end of\n{}", self.trace);
        self
    }

    /// Checks that this event was reported, as `reason: message`.
    #[track_caller]
    pub(crate) fn reports(&mut self, event: &str) -> &mut Self {
        assert!(
            self.events.iter().any(|reported| reported == event),
            "{event:?} is not in {:?}",
            self.events
        );
        self
    }

    /// Checks the phase of the pod `u1`.
    #[track_caller]
    pub(crate) fn shows_phase(&mut self, expected: &str) -> &mut Self {
        assert_eq!(self.status(&"u1".into())["phase"], expected, "\n{}", self.log);
        self
    }
}

/// The fates that a text names, such as `app#0 exits 1 after 5s, app is OOMKilled after 3s, * ignores Term`: the first
/// that is of this run, or else the run continues until it is asked to end.
pub(crate) fn scripted(text: &str) -> impl FnMut(&str, u32) -> Fate + 'static {
    let rule = |rule: &str| {
        let (run, fate) = rule.split_once(' ').expect("a fate");
        let (name, number) = run.split_once('#').map_or((run, None), |(name, number)| (name, Some(number)));
        let number = number.map(|number| number.parse::<u32>().expect("the number of a run"));
        let after = |text: &str| secs(text.trim_end_matches('s').parse().expect("seconds"));
        let fate = match fate.split(' ').collect::<Vec<_>>()[..] {
            ["exits", code, "after", time] => Fate::Exits(code.parse().expect("a code"), after(time)),
            ["is", "OOMKilled", "after", time] => Fate::OutOfMemory(after(time)),
            ["ignores", "Term"] => Fate::IgnoresTerm,
            ["runs"] => Fate::Runs,
            ["hangs", "at", "start"] => Fate::HangsAtStart,
            ["fails", "with", reason] => {
                Fate::FailsToStart(serde_json::from_value(reason.into()).expect("a reason"))
            }
            _ => panic!("no fate: {rule}"),
        };
        (name.to_owned(), number, fate)
    };
    let rules: Vec<_> = text.split(", ").map(rule).collect();
    move |name, number| {
        let is_of = |(of, only, _): &&(String, Option<u32>, Fate)| {
            (of == "*" || of == name) && only.is_none_or(|only| only == number)
        };
        rules.iter().find(is_of).map_or(Fate::Runs, |(.., fate)| fate.clone())
    }
}

/// The first run of the first container.
pub(crate) const FIRST_RUN: Attempt = Attempt { container: ContainerIndex(0), number: 0 };

/// A pod that an agent finds in a sandbox since this time, with these runs and nothing on flash.
pub(crate) fn found_pod(pod: Rc<Pod>, since: Instant, attempts: Vec<FoundAttempt>) -> FoundPod {
    let sandbox = Some(FoundSandbox { ip: None, at: since });
    FoundPod { pod, record: None, sandbox, processes: false, attempts, status: StatusHandover::default() }
}

/// The exit of a run of this boot.
pub(crate) fn exit(code: i32, started: Instant, finished: Instant) -> Exit {
    Exit {
        code,
        oom_killed: false,
        unknown: false,
        message: "".into(),
        started_at: Moment::ThisBoot(started),
        finished_at: Moment::ThisBoot(finished),
    }
}

/// The entry of a container of `u1` in its status.
pub(crate) fn shown(sim: &Sim, name: &str) -> Value {
    let status = sim.status(&"u1".into());
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
    all.find(|status| status["name"] == name).expect("a status for each container").clone()
}
