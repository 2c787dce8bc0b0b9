//! The huge pages of the machine, read once, and the limits of containers.

use nodlet_core::sorted::SortedMap;
use std::fs;
use std::path::Path;

use nodlet_core::spec::{Pod, Quantity};

/// The bytes in huge pages of the machine, by the size of the pages, such as `2Mi`. Sizes without pages are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugePages(SortedMap<String, i64>);

impl HugePages {
    pub(super) fn of_the_machine() -> HugePages {
        HugePages::read(Path::new("/sys/kernel/mm/hugepages"))
    }

    fn read(directory: &Path) -> HugePages {
        let sizes = fs::read_dir(directory).into_iter().flatten().filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name();
            let kib: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            let count: i64 = count.trim().parse().ok()?;
            let size = Quantity::parse(&format!("{kib}Ki")).ok()?.to_string();
            (count > 0).then(|| (size, count.saturating_mul(kib << 10)))
        });
        HugePages(sizes.collect())
    }

    /// Whether the machine has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes by the size of the pages.
    pub fn amounts(&self) -> &SortedMap<String, i64> {
        &self.0
    }

    /// The limits of a container of `pod`.
    pub fn of_container(
        &self,
        pod: &Pod,
        container: nodlet_core::spec::ContainerIndex,
    ) -> Vec<(String, i64)> {
        let container = pod.spec.container(container);
        self.limits(|size| {
            pod.spec.limit_of(container, |resources| resources.huge_pages_of(size)).unwrap_or(0)
        })
    }

    /// The limits for all sizes of the machine: those that are not requested are zero.
    pub(super) fn limits(&self, requested: impl Fn(&str) -> i64) -> Vec<(String, i64)> {
        let limits = self.0.keys().map(|size| (file_size(size), requested(size)));
        limits.collect()
    }
}

/// The size of pages in the names of the controller's files: `2MB` for `2Mi`.
fn file_size(size: &str) -> String {
    format!("{}B", size.trim_end_matches('i'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_machine_are_counted_by_their_size_and_limited_by_the_names_of_files() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        for (name, count) in [
            ("hugepages-2048kB", "4\n"),
            ("hugepages-64kB", "16\n"),
            ("hugepages-1048576kB", "0\n"),
            ("other", "1\n"),
        ] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        let pages = HugePages::read(directory.path());
        let expected = [("2Mi".to_owned(), 8 << 20), ("64Ki".to_owned(), 1 << 20)];
        assert_eq!(pages.amounts(), &SortedMap::from(expected));
        let limits = pages.limits(|size| if size == "2Mi" { 2 << 20 } else { 0 });
        assert_eq!(limits, [("2MB".to_owned(), 2 << 20), ("64KB".to_owned(), 0)]);
        assert_eq!(file_size("1Gi"), "1GB");
        assert!(HugePages::read(Path::new("/nonexistent")).is_empty());
    }
}
