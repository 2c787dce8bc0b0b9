//! `resource.Quantity`: a decimal number with a suffix, as Kubernetes writes cpu and memory.

use std::cmp::Ordering;
use std::fmt;

/// A quantity, exact to a billionth of its unit, and the family of suffixes in which it was written.
///
/// Two quantities are equal if their amounts are: `1000m` is `1`, `1Ki` is `1024`.
/// One `i128` of billionths can represent every amount that Kubernetes stores (2^63-1 units).
#[derive(Clone, Debug)]
pub struct Quantity {
    nano: i128,
    family: Family,
}

/// The family of suffixes in which a quantity was written, and in which it is printed.
#[derive(Clone, Copy, Debug)]
enum Family {
    /// The suffixes `n u m k M G T P E`.
    Decimal,
    /// The suffixes `Ki Mi Gi Ti Pi Ei`.
    Binary,
    /// An exponent, such as `e3`.
    Exponent,
}

/// Why a text is not a quantity, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text has no number, or something other than a suffix follows the number.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// Kubernetes does not know the suffix, for instance `K` or `mb`.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// The largest amount; larger ones are capped.
const MAX: i128 = (i64::MAX as i128) * NANO;

impl Quantity {
    /// A quantity of `milli` thousandths.
    pub const fn from_milli(milli: i128) -> Self {
        Quantity { nano: milli * MILLI, family: Family::Decimal }
    }

    /// The text that Kubernetes shows for an amount that was written as `text`. `rounded` means that the amount is
    /// rounded up to thousandths, as those of containers are.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn shown(text: &str, rounded: bool) -> Result<String, QuantityError> {
        let quantity = Quantity::parse(text)?;
        Ok(match (is_kept(text, rounded), rounded) {
            (true, _) => text.to_owned(),
            (false, true) => quantity.rounded_to_milli().to_string(),
            (false, false) => quantity.to_string(),
        })
    }

    /// A quantity of whole units, printed with the suffixes `Ki`, `Mi` and so on.
    pub const fn binary(units: u64) -> Self {
        Quantity { nano: units as i128 * NANO, family: Family::Binary }
    }

    /// Parses a quantity as Kubernetes does: it is capped at 2^63-1, and parts finer than a billionth are
    /// rounded up, away from zero.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number = unsigned.len() - unsigned.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (whole, rest) = unsigned.split_at(number);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => {
                rest.split_at(rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len())
            }
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Format);
        }
        let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let exponent = letters.strip_prefix(['+', '-']).unwrap_or(letters);
        if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let (scale, family) = scale(suffix).ok_or(QuantityError::Suffix)?;
        let mut nano = amount(whole, fraction, scale);
        // A fraction of one byte, for instance, has no fitting binary suffix.
        let family = if matches!(family, Family::Binary) && nano > 0 && nano < NANO {
            Family::Decimal
        } else {
            family
        };
        if text.starts_with('-') {
            nano = -nano;
        }
        Ok(Quantity { nano, family })
    }

    /// Rounds up to thousandths, as the API does with every resource it stores.
    #[must_use]
    fn rounded_to_milli(mut self) -> Self {
        let rest = self.nano % MILLI;
        if rest != 0 {
            self.nano += if self.nano > 0 { MILLI - rest } else { -MILLI - rest };
        }
        self
    }

    /// `MilliValue()`: thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        round_up(self.nano, MILLI)
    }

    /// `Value()`: whole units, rounded up.
    pub fn value(&self) -> i64 {
        round_up(self.nano, NANO)
    }

    /// The sum of both quantities, in the suffixes of the first one that is not zero.
    #[must_use]
    pub fn plus(&self, other: &Quantity) -> Quantity {
        let family = if self.is_zero() { other.family } else { self.family };
        Quantity { nano: (self.nano + other.nano).clamp(-MAX, MAX), family }
    }

    /// Whether the amount is below zero.
    pub fn is_negative(&self) -> bool {
        self.nano < 0
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// Whether the amount in thousandths is a whole number of units, or too large to decide.
    pub fn is_whole(&self) -> bool {
        let milli = self.milli_value();
        milli % 1000 == 0 || milli == i64::MAX
    }
}

/// The factor that a suffix stands for.
#[derive(Clone, Copy)]
enum Scale {
    /// Ten to this power.
    Ten(i64),
    /// Two to this power.
    Two(u32),
}

/// Whether Kubernetes keeps a text that it can read, though it may not be canonical, such as `+1`, `5.` or `0644`
/// (`ParseQuantity`). `rounded` means that the amount is rounded up to thousandths.
fn is_kept(text: &str, rounded: bool) -> bool {
    let number = text.trim_start_matches(['+', '-']).trim_start_matches('0');
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (number, suffix) = number.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (digits, decimals) = (whole.len() + fraction.len(), fraction.len() as i64);
    match scale(suffix) {
        _ if whole.is_empty() => false,
        Some((Scale::Ten(power), _)) => {
            let least = if rounded { -3 } else { -9 };
            let scale = power.saturating_sub(decimals);
            let ends_in_zeros = format!("{whole}{fraction}").ends_with("000");
            digits <= 18 && scale >= least && scale % 3 == 0 && !ends_in_zeros
        }
        Some((Scale::Two(power), _)) => {
            let is_short = whole.len() + power as usize * 3 / 10 < 15;
            is_short && fraction.is_empty() && whole.parse::<u64>().is_ok_and(|value| value % 8 != 0)
        }
        None => false,
    }
}

fn scale(suffix: &str) -> Option<(Scale, Family)> {
    const DECIMAL: [(&str, i64); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Scale::Ten(*power), Family::Decimal));
    }
    if let Some(index) = BINARY.iter().position(|name| *name == suffix) {
        return Some((Scale::Two(10 * (index as u32 + 1)), Family::Binary));
    }
    let power = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((Scale::Ten(power), Family::Exponent))
}

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The amount in billionths, rounded up and capped. Digits are read one by one, so that a number of a million
/// digits costs a million steps and no memory.
fn amount(whole: &str, fraction: &str, scale: Scale) -> i128 {
    // `power` and `factor` of the suffix: the unit is factor * 10^power.
    let (power, factor) = match scale {
        Scale::Ten(power) => (power, 1),
        Scale::Two(power) => (0, 1_i128 << power),
    };
    // The value of the digits as an integer times 10^exponent, in billionths.
    let mut value: i128 = 0;
    let mut exponent = 9_i64.saturating_add(power).saturating_sub(fraction.len() as i64);
    let mut inexact = false;
    let digits = whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0'));
    let total = whole.len() + fraction.len();
    for (index, digit) in digits.enumerate() {
        match value.checked_mul(10).and_then(|value| value.checked_add(digit)) {
            Some(next) => value = next,
            None => {
                // An i128 has room for no more digits: the rest only shifts the value, and may round it up.
                exponent = exponent.saturating_add((total - index) as i64);
                inexact = true;
                break;
            }
        }
    }
    if value == 0 {
        return 0;
    }
    // Multiply by large factors last, so that exact intermediate values stay exact.
    let mut value = match value.checked_mul(factor) {
        Some(value) => value,
        None => return MAX,
    };
    while exponent > 0 {
        exponent -= 1;
        value = match value.checked_mul(10) {
            Some(value) if value <= MAX => value,
            Some(_) | None => return MAX,
        };
    }
    while exponent < 0 && value > 0 {
        exponent += 1;
        inexact |= value % 10 != 0;
        value /= 10;
    }
    // All digits below a billionth are cut off; if any was not zero, round up.
    value += i128::from(inexact);
    value.min(MAX)
}

fn round_up(nano: i128, unit: i128) -> i64 {
    (nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0))
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The canonical form: the family in which the quantity was written, and the largest suffix that leaves no
/// fraction.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        let whole = self.nano % NANO == 0;
        let units = self.nano / NANO;
        if matches!(self.family, Family::Binary) && whole && units.abs() >= 1024 {
            let mut number = units;
            let mut suffix = "";
            for name in BINARY {
                if number % 1024 != 0 {
                    break;
                }
                number /= 1024;
                suffix = name;
            }
            return write!(f, "{number}{suffix}");
        }
        let mut number = self.nano;
        let mut exponent = -9;
        while number % 1000 == 0 && exponent < 18 {
            number /= 1000;
            exponent += 3;
        }
        write!(f, "{number}")?;
        match (self.family, exponent) {
            (_, 0) => Ok(()),
            (Family::Exponent, exponent) => write!(f, "e{exponent}"),
            (Family::Decimal | Family::Binary, exponent) => {
                f.write_str(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][((exponent + 9) / 3) as usize])
            }
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

#[cfg(test)]
mod tests {
    use super::{Quantity, QuantityError};
    use nodlet_fuzz::assert_starts_with;

    #[test]
    fn quantities_print_in_their_canonical_form() {
        for (written, canonical) in [
            ("0", "0"),
            ("0Ki", "0"),
            ("-0", "0"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1.5Gi", "1536Mi"),
            ("2048Mi", "2Gi"),
            ("1000", "1k"),
            ("0.1Gi", "107374182400m"),
            ("1023Ki", "1023Ki"),
            ("1024", "1024"),
            ("1", "1"),
            ("+1", "1"),
            ("-1", "-1"),
            ("-1500m", "-1500m"),
            ("1.500", "1500m"),
            (".5", "500m"),
            ("1.", "1"),
            ("1.G", "1G"),
            ("001", "1"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e4", "120e3"),
            ("1.5e3", "1500"),
            ("1e-3", "1e-3"),
            ("1e-12", "1e-9"),
            ("100m", "100m"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("129M", "129M"),
            ("123Mi", "123Mi"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("1.0000000001", "1000000001n"),
            ("3u", "3u"),
            ("0.0001Ki", "102400u"),
            ("8Ei", "9223372036854775807"),
            ("100Ei", "9223372036854775807"),
            ("7Ei", "7Ei"),
            ("9E", "9E"),
        ] {
            assert_eq!(
                Quantity::parse(written).map(|q| q.to_string()),
                Ok(canonical.to_owned()),
                "{written}"
            );
        }
    }

    #[test]
    fn an_invalid_quantity_is_rejected_with_the_error_of_kubernetes() {
        for (written, error) in [
            ("", QuantityError::Format),
            ("abc", QuantityError::Format),
            ("-", QuantityError::Format),
            (".", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("1 Gi", QuantityError::Format),
            ("1GB", QuantityError::Format),
            ("1e", QuantityError::Suffix),
            ("1e3k", QuantityError::Format),
            ("1K", QuantityError::Suffix),
            ("1mi", QuantityError::Suffix),
            ("1kk", QuantityError::Suffix),
            ("1e99999999999999999999", QuantityError::Suffix),
            ("0x10", QuantityError::Format),
            ("٣", QuantityError::Format),
        ] {
            assert_eq!(Quantity::parse(written), Err(error), "{written}");
        }
        assert_starts_with(&QuantityError::Format, "quantities must match the regular expression '^(");
    }

    #[test]
    fn values_round_up_and_amounts_compare_across_families() {
        let parse = |text| Quantity::parse(text).unwrap();
        assert_eq!((parse("1.2").value(), parse("1.2").milli_value()), (2, 1200));
        assert_eq!((parse("1u").value(), parse("1u").milli_value()), (1, 1));
        assert_eq!(parse("-1.5").value(), -1);
        assert_eq!(parse("1u").rounded_to_milli().to_string(), "1m");
        assert_eq!(parse("-1u").rounded_to_milli().to_string(), "-1m");
        assert_eq!(parse("1m").rounded_to_milli().to_string(), "1m");
        assert_eq!(parse("1Ki"), parse("1024"));
        assert!(parse("1M") < parse("1Mi"));
        assert!(parse("1500m").milli_value() == 1500 && !parse("1500m").is_whole() && parse("2").is_whole());
    }

    #[test]
    fn numbers_of_any_length_cost_no_more_than_reading_them() {
        let nines = "9".repeat(1_000_000);
        assert_eq!(Quantity::parse(&nines).unwrap().value(), i64::MAX);
        assert_eq!(Quantity::parse(&format!("0.{nines}")).unwrap().to_string(), "1");
        assert_eq!(Quantity::parse(&format!("{}1", "0".repeat(1_000_000))).unwrap().to_string(), "1");
        assert_eq!(Quantity::parse("1e999999999999").unwrap().value(), i64::MAX);
        assert_eq!(Quantity::parse("1e-999999999999").unwrap().to_string(), "1e-9");
        assert_eq!(Quantity::parse("0e999999999999").unwrap().to_string(), "0");
    }

    /// Expected texts were printed by `ParseQuantity`, `RoundUp(Milli)` and `MarshalJSON` of Kubernetes 1.36.
    #[test]
    fn some_texts_are_shown_as_they_were_written() {
        for (text, plain, rounded) in [
            ("+1", "+1", "+1"),
            ("5.", "5.", "5."),
            ("5.Gi", "5.Gi", "5.Gi"),
            ("0644", "0644", "0644"),
            ("1000", "1k", "1k"),
            ("1000m", "1", "1"),
            ("0.5", "500m", "500m"),
            ("1.500", "1.500", "1.500"),
            ("1.5", "1500m", "1500m"),
            ("1.000001", "1.000001", "1001m"),
            ("000", "0", "0"),
            ("1Ki", "1Ki", "1Ki"),
            ("1024Mi", "1Gi", "1Gi"),
            ("1e3", "1e3", "1e3"),
            ("0.1m", "100u", "1m"),
            ("1.0000001", "1000000100n", "1001m"),
        ] {
            assert_eq!(Quantity::shown(text, false).as_deref(), Ok(plain), "{text}");
            assert_eq!(Quantity::shown(text, true).as_deref(), Ok(rounded), "{text}");
        }
        assert_eq!(Quantity::shown("1K", false), Err(QuantityError::Suffix));
    }
}
