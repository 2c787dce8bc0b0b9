//! Judges the configuration and the version of a kernel by the table of features (`features.rs`): what is missing, what
//! that means for pods, and which options mend it.

use super::config::{Config, Setting, Version};
use super::features::{Feature, OLDEST, Way, features};
use super::report::{Area, Check, Finding};

impl Feature {
    /// A check that found that the feature is missing.
    pub(super) fn lacks(&self, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(self.lack, found).because(self.without, remedy)
    }

    /// The best way in which a kernel of this configuration and version provides the feature. An unknown
    /// version counts as old.
    pub(super) fn way(&self, config: &Config, version: Option<Version>) -> Option<&Way> {
        self.ways.iter().find(|way| way.is_possible(version) && way.lacking(config).is_empty())
    }

    /// Judges the feature by a kernel's configuration.
    pub(super) fn judge(&self, config: &Config, version: Option<Version>) -> Finding {
        if let Some(way) = self.way(config, version) {
            let found = way.enabled_options(config, self.module);
            if way.worse.is_empty() {
                return Finding::ok(found);
            }
            return Finding::warning(found)
                .because(way.worse, format!("Enable {}.", options(&self.ways[0].lacking(config))));
        }
        let found = self.ways.iter().filter(|way| way.is_possible(version)).map(|way| {
            let lacking = way.lacking(config);
            let is = if lacking.len() == 1 { "is" } else { "are" };
            format!("{} {is} not set", options(&lacking))
        });
        self.lacks(found.collect::<Vec<_>>().join("; "), self.enable(config, version))
    }

    /// The options to enable for the feature, as a sentence.
    pub(super) fn enable(&self, config: &Config, version: Option<Version>) -> String {
        let ways = self.ways.iter().map(|way| {
            let options = options(&way.lacking(config));
            match way.since {
                Some(since) if !way.is_possible(version) && options.is_empty() => {
                    format!("use Linux {since} or later")
                }
                Some(since) if !way.is_possible(version) => {
                    format!("enable {options} with Linux {since} or later")
                }
                Some(_) | None => format!("enable {options}"),
            }
        });
        sentence(&ways.collect::<Vec<_>>().join(", or "))
    }
}

impl Way {
    fn is_possible(&self, version: Option<Version>) -> bool {
        self.since.is_none_or(|since| version.is_some_and(|version| version >= since))
    }

    fn lacking(&self, config: &Config) -> Vec<&'static str> {
        self.options.iter().copied().filter(|option| config.setting(option) == Setting::Off).collect()
    }

    fn enabled_options(&self, config: &Config, module: &str) -> String {
        let modules: Vec<&str> =
            self.options.iter().copied().filter(|option| config.setting(option) == Setting::Module).collect();
        let all = options(self.options);
        match modules[..] {
            [] => all,
            _ if module.is_empty() => format!("{all}; of these as modules: {}", options(&modules)),
            _ => format!("{all}; a module, {module}, which must be on the board"),
        }
    }
}

/// Joins the names of options: `CONFIG_A, CONFIG_B and CONFIG_C`.
pub(super) fn options(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("CONFIG_{name}")).collect();
    match &names[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Adds a capital first letter and a full stop.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// Judges the version of a kernel.
pub(super) fn judge_version(version: Option<Version>, release: &str) -> Finding {
    match version {
        Some(version) if version >= OLDEST => Finding::ok(release),
        Some(_) => Finding::missing(release).because(
            "Pods cannot be ended: cgroup.kill is missing.",
            format!("Use Linux {OLDEST} or later."),
        ),
        None => Finding::unknown(format!("{release} names no version"))
            .because(format!("It must be {OLDEST} or later."), ""),
    }
}

/// All checks that a kernel's configuration allows.
pub(super) fn judge_file(config: &Config) -> Vec<Check> {
    let version = config.version();
    let whole = if config.is_whole() {
        Finding::ok("whole")
    } else {
        Finding::warning("without the first lines that the kernel's build writes")
            .because(
                "A defconfig or a fragment omits options that are set by default: options that are missing below may be set.",
                "Specify the .config in the kernel's build directory.",
            )
    };
    let release = config.release.as_deref().unwrap_or("the file");
    let findings = vec![("Linux version", judge_version(version, release)), ("configuration", whole)];
    let features = features().map(|(area, feature)| Check {
        area,
        name: feature.name,
        finding: feature.judge(config, version),
    });
    Area::Kernel.checks(findings).chain(features).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    /// The configuration of a kernel with all options of all features enabled.
    fn whole(release: &str) -> Vec<String> {
        let mut lines = vec![format!("# Linux/arm64 {release} Kernel Configuration")];
        let mut options: Vec<&str> =
            features().flat_map(|(_, feature)| feature.ways).flat_map(|way| way.options).copied().collect();
        options.sort_unstable();
        options.dedup();
        lines.extend(options.iter().map(|option| format!("CONFIG_{option}=y")));
        lines
    }

    fn judged(lines: &[String]) -> Vec<Check> {
        judge_file(&Config::parse(&lines.join("\n")).unwrap())
    }

    fn named<'a>(checks: &'a [Check], name: &str) -> &'a Finding {
        &checks.iter().find(|check| check.name == name).unwrap().finding
    }

    #[test]
    fn a_kernel_with_all_options_lacks_nothing() {
        for release in ["5.14.0", "6.6.1", "6.12.34-v8+"] {
            let checks = judged(&whole(release));
            assert!(checks.iter().all(|check| check.finding.verdict == Verdict::Ok), "{checks:#?}");
        }
    }

    #[test]
    fn each_option_that_a_feature_has_no_other_way_without_is_named() {
        for (_, feature) in features().filter(|(_, feature)| feature.ways.len() == 1) {
            for option in feature.ways[0].options {
                let mut lines = whole("6.12.0");
                lines.retain(|line| *line != format!("CONFIG_{option}=y"));
                let checks = judged(&lines);
                let check = named(&checks, feature.name);
                assert_eq!(check.verdict, feature.lack, "{option}");
                assert!(check.remedy.contains(&format!("CONFIG_{option}")), "{check:?}");
                assert!(!check.meaning.is_empty(), "{check:?}");
            }
        }
    }

    /// Checks the verdict and the remedy of a feature for a kernel that lacks these options.
    #[track_caller]
    fn check(release: &str, without: &[&str], name: &str, verdict: Verdict, remedy: &str) {
        let mut lines = whole(release);
        lines.retain(|line| without.iter().all(|option| *line != format!("CONFIG_{option}=y")));
        let checks = judged(&lines);
        let check = named(&checks, name);
        assert_eq!((check.verdict, check.remedy.as_str()), (verdict, remedy), "{check:?}");
    }

    #[test]
    fn the_verdict_on_a_missing_option_depends_on_version_and_alternatives() {
        let file = "EROFS_FS_BACKED_BY_FILE";
        check("6.12.0", &["BLK_DEV_LOOP"], "layer mounts", Verdict::Ok, "");
        check("6.12.0", &[file], "layer mounts", Verdict::Ok, "");
        let both = "Enable CONFIG_EROFS_FS_BACKED_BY_FILE, or enable CONFIG_BLK_DEV_LOOP.";
        check("6.12.0", &["BLK_DEV_LOOP", file], "layer mounts", Verdict::Missing, both);
        let old =
            "Enable CONFIG_EROFS_FS_BACKED_BY_FILE with Linux 6.12 or later, or enable CONFIG_BLK_DEV_LOOP.";
        check("6.6.0", &["BLK_DEV_LOOP", file], "layer mounts", Verdict::Missing, old);

        check("6.6.0", &["NET_CLS_BPF"], "sender filter", Verdict::Ok, "");
        let classifier = "Enable CONFIG_NET_CLS_BPF, or use Linux 6.6 or later.";
        check("6.1.0", &["NET_CLS_BPF"], "sender filter", Verdict::Warning, classifier);

        let filter = "Enable CONFIG_CGROUP_BPF.";
        check("6.1.0", &["CGROUP_BPF"], "device filter", Verdict::Warning, filter);
        let either = "Enable CONFIG_CGROUP_BPF, or enable CONFIG_CGROUP_DEVICE.";
        check("6.1.0", &["CGROUP_BPF", "CGROUP_DEVICE"], "device filter", Verdict::Missing, either);

        check("5.10.1", &[], "Linux version", Verdict::Missing, "Use Linux 5.14 or later.");
    }

    #[test]
    fn a_module_is_distinguished_from_a_built_in_feature() {
        let text = "# Linux/x86 6.12.1 Kernel Configuration\nCONFIG_VETH=m\nCONFIG_BRIDGE=y\n";
        let checks = judge_file(&Config::parse(text).unwrap());
        assert_eq!(named(&checks, "veth").text, "CONFIG_VETH; a module, veth, which must be on the board");
        assert_eq!(named(&checks, "bridge").text, "CONFIG_BRIDGE");
    }

    #[test]
    fn a_fragment_of_a_kernel_configuration_is_reported_as_incomplete() {
        let checks = judge_file(&Config::parse("CONFIG_VETH=y\n").unwrap());
        assert_eq!(named(&checks, "configuration").verdict, Verdict::Warning);
        assert_eq!(named(&checks, "Linux version").verdict, Verdict::Unknown);
    }

    #[test]
    fn names_of_features_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        assert!(features().all(|(_, feature)| names.insert(feature.name)));
    }
}
