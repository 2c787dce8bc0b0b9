//! A set that is a sorted vector. Read next: its parent, which says what for.

use std::borrow::Borrow;
use std::fmt;
use std::iter::Map;
use std::ops::RangeBounds;

use super::{Iter, SortedMap};

/// The elements of a set, sorted.
type Elements<'set, T> = Map<Iter<'set, T, ()>, fn((&'set T, &'set ())) -> &'set T>;

/// A set with its elements in their order. It takes no memory while it is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedSet<T> {
    map: SortedMap<T, ()>,
}

impl<T> SortedSet<T> {
    /// An empty set.
    pub const fn new() -> SortedSet<T> {
        SortedSet { map: SortedMap::new() }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the set has no elements.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// All elements, sorted.
    pub fn iter(&self) -> Elements<'_, T> {
        self.map.iter().map(|(element, ())| element)
    }

    /// The smallest element.
    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    /// The largest element.
    pub fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }

    /// Removes the largest element.
    pub fn pop_last(&mut self) -> Option<T> {
        self.map.pop_last().map(|(element, ())| element)
    }

    /// Keeps the elements for which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.map.retain(|element, ()| keep(element));
    }
}

impl<T: Ord> SortedSet<T> {
    /// Whether the set has this element.
    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.map.contains_key(element)
    }

    /// Adds an element. Returns whether it is new.
    pub fn insert(&mut self, element: T) -> bool {
        self.map.insert(element, ()).is_none()
    }

    /// Removes an element. Returns whether the set had it.
    pub fn remove<Q: Ord + ?Sized>(&mut self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.map.remove(element).is_some()
    }

    /// The elements in this range, sorted.
    pub fn range<Q: Ord + ?Sized>(&self, range: impl RangeBounds<Q>) -> Elements<'_, T>
    where
        T: Borrow<Q>,
    {
        self.map.range(range).map(|(element, ())| element)
    }

    /// The elements that the other set does not have, sorted.
    pub fn difference(&self, other: &SortedSet<T>) -> impl Iterator<Item = &T> {
        self.iter().filter(|element| !other.contains(*element))
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> SortedSet<T> {
        SortedSet::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for SortedSet<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_set().entries(self).finish()
    }
}

impl<T: Ord> Extend<T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        for element in elements {
            self.insert(element);
        }
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> SortedSet<T> {
        let mut set = SortedSet::new();
        set.extend(elements);
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(elements: [T; N]) -> SortedSet<T> {
        elements.into_iter().collect()
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = Map<std::vec::IntoIter<(T, ())>, fn((T, ())) -> T>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.into_iter().map(|(element, ())| element)
    }
}

impl<'set, T> IntoIterator for &'set SortedSet<T> {
    type Item = &'set T;
    type IntoIter = Elements<'set, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
