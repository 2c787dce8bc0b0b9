//! [`Report`]: which of Kubernetes' tests passed, failed and were skipped, and why, from ginkgo's report in JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use nodlet_build::task::TaskError;
use serde::Deserialize;

/// The outcomes of the tests that were chosen, by their names.
#[derive(Debug, Default)]
pub(super) struct Report(pub(super) BTreeMap<String, Ended>);

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// It passed.
    Passed,
    /// It failed, for this reason.
    Failed(String),
    /// It decided itself not to run, for this reason.
    Skipped(String),
    /// The time was over before it had ended.
    OutOfTime,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Spec>>,
}

/// A test, in ginkgo's words.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Option<Why>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Why {
    #[serde(default)]
    message: String,
    #[serde(default)]
    location: Option<Location>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Location {
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    line_number: u32,
}

impl Report {
    /// Reads a report that ginkgo wrote.
    pub(super) fn read(path: &Path) -> Result<Self, TaskError> {
        let wrong = |error: &dyn fmt::Display| TaskError(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        Self::parse(&text).map_err(|error| wrong(&error))
    }

    fn parse(text: &str) -> serde_json::Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(text)?;
        let specs = suites.into_iter().filter_map(|suite| suite.spec_reports).flatten();
        Ok(Self(specs.filter_map(Spec::outcome).collect()))
    }

    /// The names of the tests, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The number of tests whose outcome meets a condition.
    fn count(&self, is: fn(&Ended) -> bool) -> usize {
        self.0.values().filter(|ended| is(ended)).count()
    }
}

impl Spec {
    /// The name of the test and its outcome; `None` for a test that was not chosen, and for what is none.
    fn outcome(self) -> Option<(String, Ended)> {
        let why = self.failure.as_ref().map(Why::text).unwrap_or_default();
        let ended = match self.state.as_str() {
            "passed" => Ended::Passed,
            // Tests that the options exclude have no reason.
            "skipped" if why.is_empty() => return None,
            "pending" => return None,
            "skipped" => Ended::Skipped(why),
            "interrupted" | "aborted" => Ended::OutOfTime,
            state => Ended::Failed(format!("{state}: {why}")),
        };
        let of_test = self.leaf_node_type == "It";
        // What comes before or after all tests has no name of its own.
        if !of_test && ended == Ended::Passed {
            return None;
        }
        let text = if of_test { self.leaf_node_text } else { format!("({})", self.leaf_node_type) };
        let names = self.container_hierarchy_texts.into_iter().flatten().chain([text]);
        Some((names.collect::<Vec<_>>().join(" "), ended))
    }
}

impl Why {
    /// The beginning of the message, with the line of the test.
    fn text(&self) -> String {
        const LINES: usize = 12;
        let mut lines: Vec<&str> = self.message.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return String::new();
        }
        lines.truncate(LINES);
        let at = self.location.as_ref().map_or(String::new(), |at| {
            let file = at.file_name.rsplit_once("/test/").map_or(at.file_name.as_str(), |(_, file)| file);
            format!("\n(test/{file}:{})", at.line_number)
        });
        lines.join("\n") + &at
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, ended) in &self.0 {
            let (word, why) = match ended {
                Ended::Passed => continue,
                Ended::Failed(why) => ("failed", why.as_str()),
                Ended::Skipped(why) => ("skipped", why.as_str()),
                Ended::OutOfTime => ("out of time", ""),
            };
            writeln!(f, "{word}: {name}")?;
            why.lines().try_for_each(|line| writeln!(f, "    {line}"))?;
        }
        writeln!(
            f,
            "{} passed, {} failed, {} skipped, {} out of time, of {}",
            self.count(|ended| *ended == Ended::Passed),
            self.count(|ended| matches!(ended, Ended::Failed(_))),
            self.count(|ended| matches!(ended, Ended::Skipped(_))),
            self.count(|ended| *ended == Ended::OutOfTime),
            self.0.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_have_their_full_names_and_the_reasons_of_their_outcomes() {
        let text = r#"[{"SpecReports": [
            {"ContainerHierarchyTexts": null, "LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig] Pods"], "LeafNodeType": "It", "LeafNodeText": "run", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig] Pods", "when"], "LeafNodeType": "It", "LeafNodeText": "fail",
             "State": "failed", "Failure": {"Message": "no\n\npod", "Location":
             {"FileName": "/go/k8s.io/test/e2e/pods.go", "LineNumber": 7}}},
            {"ContainerHierarchyTexts": ["[sig]"], "LeafNodeType": "It", "LeafNodeText": "not chosen", "State": "skipped"},
            {"ContainerHierarchyTexts": ["[sig]"], "LeafNodeType": "It", "LeafNodeText": "cannot run", "State": "skipped",
             "Failure": {"Message": "only on Windows"}},
            {"ContainerHierarchyTexts": ["[sig]"], "LeafNodeType": "It", "LeafNodeText": "late", "State": "interrupted"},
            {"ContainerHierarchyTexts": null, "LeafNodeType": "AfterSuite", "LeafNodeText": "", "State": "panicked",
             "Failure": {"Message": "oh"}}
        ]}]"#;
        let report = Report::parse(text).unwrap();
        let expected = "\
failed: (AfterSuite)
    panicked: oh
skipped: [sig] cannot run
    only on Windows
out of time: [sig] late
failed: [sig] Pods when fail
    failed: no
    pod
    (test/e2e/pods.go:7)
1 passed, 2 failed, 1 skipped, 1 out of time, of 5
";
        let mut lines: Vec<&str> = report.names().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            ["(AfterSuite)", "[sig] Pods run", "[sig] Pods when fail", "[sig] cannot run", "[sig] late"]
        );
        let mut printed: Vec<String> = report.to_string().lines().map(str::to_owned).collect();
        let mut wanted: Vec<String> = expected.lines().map(str::to_owned).collect();
        printed.sort();
        wanted.sort();
        assert_eq!(printed, wanted);
    }
}
