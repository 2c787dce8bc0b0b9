//! `resource.Quantity`: a decimal number with a suffix, as Kubernetes writes cpu and memory.

/// A quantity in thousandths of its unit, rounded up, as the API stores it.
///
/// One `i128` holds every value that Kubernetes keeps (up to 2^63-1 units).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    milli: i128,
}

impl Quantity {
    /// A quantity of `milli` thousandths.
    pub const fn from_milli(milli: i128) -> Self {
        Quantity { milli }
    }

    /// `MilliValue()`: thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        self.milli.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// `Value()`: whole units, rounded up.
    pub fn value(&self) -> i64 {
        (self.milli.div_euclid(1000) + i128::from(self.milli.rem_euclid(1000) != 0))
            .clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }
}
