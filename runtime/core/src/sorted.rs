//! Maps and sets that are sorted vectors. They have the methods of the standard library's `BTreeMap` and `BTreeSet`, and
//! much less code for each type: with them, the binary for x86-64 has 288 256 bytes less.
//!
//! Lookups take logarithmic time. An insertion or removal moves all larger entries, so it takes linear time, except for a
//! key larger than all others: a map is built from sorted input in linear time. That is fast for thousands of entries.
//! A map to which a container or an image can add without a bound must be a `BTreeMap`.

mod serial;
mod set;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::iter::Map;
use std::ops::{Bound, Index, RangeBounds};
use std::slice;

pub use set::SortedSet;

/// The entries of a map, sorted.
pub type Iter<'map, K, V> = Map<slice::Iter<'map, (K, V)>, fn(&'map (K, V)) -> (&'map K, &'map V)>;

/// The entries of a map, sorted, with values that can be changed.
pub type IterMut<'map, K, V> =
    Map<slice::IterMut<'map, (K, V)>, fn(&'map mut (K, V)) -> (&'map K, &'map mut V)>;

/// A map with its entries in the order of their keys. It takes no memory while it is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedMap<K, V> {
    entries: Vec<(K, V)>,
}

impl<K, V> SortedMap<K, V> {
    /// An empty map.
    pub const fn new() -> SortedMap<K, V> {
        SortedMap { entries: Vec::new() }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// All entries, sorted.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// All entries, sorted, with values that can be changed.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(_, value)| value)
    }

    /// All values, in the order of their keys.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> + ExactSizeIterator {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// The keys alone.
    pub fn into_keys(self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator {
        self.entries.into_iter().map(|(key, _)| key)
    }

    /// The values alone.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.entries.into_iter().map(|(_, value)| value)
    }

    /// The entry with the smallest key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// Removes the entry with the largest key.
    pub fn pop_last(&mut self) -> Option<(K, V)> {
        self.entries.pop()
    }

    /// Keeps the entries for which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The place of a key, or the place where it would be inserted.
    #[inline(never)]
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        let (mut from, mut to) = (0, self.entries.len());
        // The first look is at the last entry: entries are often inserted in their order.
        let mut at = to.wrapping_sub(1);
        while let Some((present, _)) = self.entries.get(at) {
            match present.borrow().cmp(key) {
                Ordering::Equal => return Ok(at),
                Ordering::Less => from = at + 1,
                Ordering::Greater => to = at,
            }
            if from >= to {
                break;
            }
            at = from + (to - from) / 2;
        }
        Err(from)
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// The entry of a key.
    fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (key, value) = self.entries.get(self.find(key).ok()?)?;
        Some((key, value))
    }

    /// The value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    /// Whether the map has an entry of this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Sets the value of a key. Returns its former value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes the entry of a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Removes the entry of a key. Returns it.
    pub fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(self.entries.remove(at))
    }

    /// The place of a key, to be read or filled.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        let at = self.find(&key);
        Entry { map: self, at, key }
    }

    /// The entries with keys in this range. A range that ends before it begins has none.
    pub fn range<Q: Ord + ?Sized>(&self, range: impl RangeBounds<Q>) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let from = match range.start_bound() {
            Bound::Included(key) => self.find(key).unwrap_or_else(|at| at),
            Bound::Excluded(key) => self.find(key).map_or_else(|at| at, |at| at + 1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(key) => self.find(key).map_or_else(|at| at, |at| at + 1),
            Bound::Excluded(key) => self.find(key).unwrap_or_else(|at| at),
            Bound::Unbounded => self.entries.len(),
        };
        self.entries.get(from..to).unwrap_or_default().iter().map(|(key, value)| (key, value))
    }
}

/// The place of a key in a map, made by [`SortedMap::entry`].
pub struct Entry<'map, K, V> {
    map: &'map mut SortedMap<K, V>,
    at: Result<usize, usize>,
    key: K,
}

impl<'map, K, V> Entry<'map, K, V> {
    /// The value of the key. If it has none, this value is inserted.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'map mut V {
        let at = match self.at {
            Ok(at) => at,
            Err(at) => {
                self.map.entries.insert(at, (self.key, make()));
                at
            }
        };
        &mut self.map.entries[at].1
    }

    /// The value of the key. If it has none, this value is inserted.
    pub fn or_insert(self, value: V) -> &'map mut V {
        self.or_insert_with(|| value)
    }

    /// The value of the key. If it has none, a default is inserted.
    pub fn or_default(self) -> &'map mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> SortedMap<K, V> {
        SortedMap::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_map().entries(self).finish()
    }
}

impl<K: Borrow<Q> + Ord, V, Q: Ord + ?Sized> Index<&Q> for SortedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry found for key")
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> SortedMap<K, V> {
        let mut map = SortedMap::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> SortedMap<K, V> {
        entries.into_iter().collect()
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'map, K, V> IntoIterator for &'map SortedMap<K, V> {
    type Item = (&'map K, &'map V);
    type IntoIter = Iter<'map, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'map, K, V> IntoIterator for &'map mut SortedMap<K, V> {
    type Item = (&'map K, &'map mut V);
    type IntoIter = IterMut<'map, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use nodlet_fuzz::Random;

    use super::*;

    #[test]
    fn a_map_answers_as_one_of_the_standard_library() {
        for seed in 0..200 {
            let mut random = Random::of(seed);
            let (mut map, mut expected) = (SortedMap::new(), BTreeMap::new());
            for step in 0..100 {
                let key = random.below(30);
                match random.below(8) {
                    0..3 => assert_eq!(map.insert(key, step), expected.insert(key, step)),
                    3 => assert_eq!(map.remove(&key), expected.remove(&key)),
                    4 => assert_eq!(map.entry(key).or_insert(step), expected.entry(key).or_insert(step)),
                    5 => {
                        *map.entry(key).or_default() += step;
                        *expected.entry(key).or_default() += step;
                    }
                    6 => {
                        map.retain(|present, _| present % 7 != key % 7);
                        expected.retain(|present, _| present % 7 != key % 7);
                    }
                    _ => assert_eq!(map.pop_last(), expected.pop_last()),
                }
                assert_eq!(
                    (map.get(&key), map.contains_key(&key)),
                    (expected.get(&key), expected.contains_key(&key))
                );
                assert!(
                    map.iter().eq(&expected) && map.iter().rev().eq(expected.iter().rev()),
                    "{seed}: {map:?}"
                );
                let to = key + random.below(9);
                assert!(map.range(key..to).eq(expected.range(key..to)), "{seed}: {map:?}");
                assert!(map.range(key..=to).eq(expected.range(key..=to)), "{seed}: {map:?}");
                assert!(map.range(..key).eq(expected.range(..key)), "{seed}: {map:?}");
                let after = (Bound::Excluded(key), Bound::Unbounded);
                assert!(map.range(after).eq(expected.range(after)), "{seed}: {map:?}");
                assert_eq!(map.first_key_value(), expected.first_key_value());
            }
            assert_eq!(
                serde_json::to_string(&map).expect("JSON"),
                serde_json::to_string(&expected).expect("JSON")
            );
            assert_eq!(format!("{map:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn the_last_of_several_values_of_a_key_counts_and_sets_have_an_element_once() {
        let map: SortedMap<String, u8> =
            [("b", 1), ("a", 2), ("b", 3)].map(|(key, value)| (key.into(), value)).into();
        assert_eq!(format!("{map:?}"), r#"{"a": 2, "b": 3}"#);
        assert_eq!((map["b"], map.get("c")), (3, None));
        assert_eq!(
            serde_json::from_str::<SortedMap<String, u8>>(r#"{"b":1,"a":2,"b":3}"#).expect("JSON"),
            map
        );
        let set: SortedSet<u8> = [3, 1, 3, 2].into();
        assert!(set.iter().eq(&BTreeSet::from([1, 2, 3])) && set.len() == 3);
        assert_eq!(serde_json::from_str::<SortedSet<u8>>("[3,1,3,2]").expect("JSON"), set);
        assert_eq!(serde_json::to_string(&set).expect("JSON"), "[1,2,3]");
        assert!(set.difference(&SortedSet::from([2])).eq(&[1, 3]));
    }
}
