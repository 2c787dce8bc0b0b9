//! The results of all checks, printed as one line per check or as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The feature works.
    Ok,
    /// Pods run, with a disadvantage.
    Warning,
    /// Pods need a feature that is missing.
    Missing,
    /// Undetermined, because of this user's rights or the contents of this file.
    Unknown,
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::Ok, Verdict::Warning, Verdict::Missing, Verdict::Unknown];

    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Missing => "missing",
            Verdict::Unknown => "unknown",
        }
    }
}

/// The subject area of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    Kernel,
    Cgroups,
    Storage,
    Network,
    Machine,
}

impl Area {
    fn word(self) -> &'static str {
        match self {
            Area::Kernel => "kernel",
            Area::Cgroups => "cgroups",
            Area::Storage => "storage",
            Area::Network => "network",
            Area::Machine => "machine",
        }
    }
}

/// One check, which is one line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) area: Area,
    pub(super) name: &'static str,
    pub(super) finding: Finding,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// What was found, without a full stop.
    pub(super) text: String,
    /// The consequence for pods, as a sentence; empty if the verdict is ok.
    pub(super) meaning: String,
    /// The advice to the user, as a sentence; empty if the verdict is ok.
    pub(super) remedy: String,
}

impl Area {
    /// The checks of this area with these names.
    pub(super) fn checks(self, findings: Vec<(&'static str, Finding)>) -> impl Iterator<Item = Check> {
        findings.into_iter().map(move |(name, finding)| Check { area: self, name, finding })
    }
}

impl Finding {
    /// Nothing is wrong.
    pub(super) fn ok(found: impl Into<String>) -> Finding {
        Finding::new(Verdict::Ok, found)
    }

    /// Pods run with a disadvantage, which [`Finding::because`] adds.
    pub(super) fn warning(found: impl Into<String>) -> Finding {
        Finding::new(Verdict::Warning, found)
    }

    /// Pods lack a requirement, which [`Finding::because`] adds.
    pub(super) fn missing(found: impl Into<String>) -> Finding {
        Finding::new(Verdict::Missing, found)
    }

    /// The check could not be performed.
    pub(super) fn unknown(found: impl Into<String>) -> Finding {
        Finding::new(Verdict::Unknown, found)
    }

    /// A finding with this verdict.
    pub(super) fn new(verdict: Verdict, found: impl Into<String>) -> Finding {
        Finding { verdict, text: found.into(), meaning: String::new(), remedy: String::new() }
    }

    /// Adds the consequence for pods and the remedy.
    pub(super) fn because(self, meaning: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { meaning: meaning.into(), remedy: remedy.into(), ..self }
    }
}

/// All checks, and the machine or file that was checked.
pub(super) struct Report {
    /// The subject as text for people: `Linux 6.12.1 on x86_64`, or the file.
    pub(super) subject: String,
    pub(super) checks: Vec<Check>,
}

impl Report {
    /// Whether no check found a missing requirement of pods. Undetermined checks do not count.
    pub(super) fn is_sufficient(&self) -> bool {
        self.count(Verdict::Missing) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.finding.verdict == verdict).count()
    }

    /// Formats the report as text for people.
    pub(super) fn text(&self) -> String {
        let verdicts = Verdict::ALL.iter().map(|verdict| verdict.word().len()).max().unwrap_or(0) + 2;
        let names = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0) + 2;
        let mut text = format!("{}\n\n", plain(&self.subject));
        for Check { name, finding, .. } in &self.checks {
            let (word, found) = (finding.verdict.word(), plain(&finding.text));
            let _ = writeln!(text, "{word:<verdicts$}{name:<names$}{found}");
            let more = plain(&format!("{} {}", finding.meaning, finding.remedy));
            if !more.trim().is_empty() {
                let _ = writeln!(text, "{:verdicts$}{}", "", more.trim());
            }
        }
        // A single check needs no summary.
        if self.checks.len() == 1 {
            return text;
        }
        let [missing, warnings, unknown] =
            [Verdict::Missing, Verdict::Warning, Verdict::Unknown].map(|verdict| self.count(verdict));
        let what = if missing == 0 {
            "nothing that pods need is missing"
        } else {
            "requirements of pods are missing"
        };
        let plural = if warnings == 1 { "" } else { "s" };
        text + &format!("\n{what}: {missing} missing, {warnings} warning{plural}, {unknown} unknown\n")
    }

    /// Formats the report as JSON for programs.
    pub(super) fn json(&self) -> Value {
        let checks = self.checks.iter().map(|Check { area, name, finding }| {
            json!({
                "area": area.word(),
                "name": name,
                "verdict": finding.verdict.word(),
                "found": finding.text,
                "meaning": finding.meaning,
                "remedy": finding.remedy,
            })
        });
        json!({
            "subject": self.subject,
            "sufficient": self.is_sufficient(),
            "checks": checks.collect::<Vec<_>>(),
        })
    }
}

/// Replaces control characters: text from files and the kernel may contain any, and each check must stay one
/// line.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let lack =
            Finding::missing("CONFIG_VETH is not set").because("Pods do not start.", "Enable CONFIG_VETH.");
        let findings = vec![
            ("overlayfs", Finding::ok("mounted")),
            ("veth", lack),
            ("a\u{1b}", Finding::unknown("line\nbreak")),
        ];
        Report { subject: "Linux".to_owned(), checks: Area::Network.checks(findings).collect() }
    }

    #[test]
    fn checks_are_aligned_and_what_is_not_ok_has_a_second_line() {
        assert_eq!(
            report().text(),
            "Linux\n\n\
             ok       overlayfs  mounted\n\
             missing  veth       CONFIG_VETH is not set\n\
             \u{20}        Pods do not start. Enable CONFIG_VETH.\n\
             unknown  a\u{1b}         line?break\n\
             \nrequirements of pods are missing: 1 missing, 0 warnings, 1 unknown\n"
        );
    }

    #[test]
    fn only_what_is_missing_makes_a_report_insufficient() {
        let mut report = report();
        assert!(!report.is_sufficient());
        assert_eq!(report.json()["sufficient"], false);
        assert_eq!(report.json()["checks"][1]["remedy"], "Enable CONFIG_VETH.");
        report.checks.retain(|check| check.finding.verdict != Verdict::Missing);
        assert!(report.is_sufficient());
        assert!(
            report
                .text()
                .ends_with("\nnothing that pods need is missing: 0 missing, 0 warnings, 1 unknown\n")
        );
    }
}
