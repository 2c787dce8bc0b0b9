//! The flags of `nodlet agent` that bound its memory and its image store.

use std::ops::RangeInclusive;
use std::time::Duration;

use lexopt::{Parser, ValueExt};
use nodlet_core::facts::MAX_PODS;
use nodlet_core::pressure::Thresholds;
use nodlet_runtime::engine::{Eviction, ImageCollection};

use crate::arguments::duration::duration;
use crate::arguments::number;
use crate::error::VerbError;

const HIGH: &str = "--image-gc-high-threshold";
const LOW: &str = "--image-gc-low-threshold";
const AGE: &str = "--minimum-image-ttl-duration";
const MAXIMUM_AGE: &str = "--image-maximum-gc-age";
const TRANSITION: &str = "--eviction-pressure-transition-period";

/// Distance between the two image thresholds if only one is given, in percent. It equals the kubelet's
/// default.
const BETWEEN: u8 = 5;

/// The time for which an unused image is kept, as in the kubelet: long enough for a pod that uses it to be
/// applied.
const MINIMUM_AGE: Duration = Duration::from_secs(120);

/// The flags given on the command line; `None` for each flag that was not given.
#[derive(Debug, Default)]
pub(super) struct Flags {
    pub(super) pods: Option<usize>,
    pub(super) events: Option<usize>,
    pub(super) connections: Option<usize>,
    high: Option<u8>,
    low: Option<u8>,
    minimum_age: Option<Duration>,
    maximum_age: Option<Duration>,
    pub(super) eviction: Eviction,
}

impl Flags {
    /// Parses the flag of this name and its value. Returns `false` if this module has no such flag.
    pub(super) fn take(&mut self, flag: &str, parser: &mut Parser) -> Result<bool, VerbError> {
        match flag {
            "--max-pods" => self.pods = Some(within(parser, flag, 1..=MAX_PODS)?),
            // One connection is reserved for short requests.
            "--max-connections" => self.connections = Some(within(parser, flag, 4..=1024)?),
            "--max-events" => self.events = Some(within(parser, flag, 1..=10_000)?),
            HIGH => self.high = Some(percent(parser, HIGH, 1..=99)?),
            LOW => self.low = Some(percent(parser, LOW, 0..=98)?),
            AGE => self.minimum_age = Some(duration(parser, AGE)?.unwrap_or_default()),
            MAXIMUM_AGE => self.maximum_age = duration(parser, MAXIMUM_AGE)?,
            "--eviction-hard" => {
                let thresholds = Thresholds::parse(&parser.value()?.string()?);
                let thresholds =
                    thresholds.map_err(|why| VerbError::new(format!("--eviction-hard: {why}")))?;
                self.eviction.thresholds = thresholds;
            }
            TRANSITION => self.eviction.transition = duration(parser, TRANSITION)?.unwrap_or_default(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// When images are removed; `None` if `--image-gc-high-threshold` is not given.
    pub(super) fn image_collection(&self) -> Result<Option<ImageCollection>, VerbError> {
        let Some(high) = self.high else {
            let given = [(LOW, self.low.is_some()), (AGE, self.minimum_age.is_some())];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(VerbError::new(format!("{flag} needs {HIGH}"))),
                // No usage reaches these thresholds.
                None => Ok(self.maximum_age.map(|_| ImageCollection {
                    high: u8::MAX,
                    low: u8::MAX,
                    minimum_age: MINIMUM_AGE,
                    maximum_age: self.maximum_age,
                })),
            };
        };
        let low = self.low.unwrap_or(high.saturating_sub(BETWEEN));
        if low >= high {
            return Err(VerbError::new(format!(
                "invalid value {low} for {LOW}: must be less than {HIGH}, {high}"
            )));
        }
        let minimum_age = self.minimum_age.unwrap_or(MINIMUM_AGE);
        Ok(Some(ImageCollection { high, low, minimum_age, maximum_age: self.maximum_age }))
    }
}

fn within(parser: &mut Parser, flag: &str, range: RangeInclusive<usize>) -> Result<usize, VerbError> {
    let value = usize::try_from(number(parser, flag)?).unwrap_or(usize::MAX);
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(VerbError::new(format!("invalid value {value} for {flag}: must be from {least} to {most}")))
}

fn percent(parser: &mut Parser, flag: &str, range: RangeInclusive<usize>) -> Result<u8, VerbError> {
    Ok(u8::try_from(within(parser, flag, range)?).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::next_flag;

    fn parse(line: &str) -> Result<(Flags, Option<ImageCollection>), String> {
        let mut flags = Flags::default();
        let mut parser = Parser::from_args(line.split_whitespace());
        while let Some(flag) = next_flag(&mut parser, &mut Vec::new()).expect("it is one") {
            assert!(flags.take(&flag, &mut parser).map_err(|why| why.to_string())?, "{flag}");
        }
        let images = flags.image_collection().map_err(|why| why.to_string())?;
        Ok((flags, images))
    }

    #[test]
    fn limits_are_parsed_and_a_missing_image_threshold_has_the_kubelets_default() {
        let (flags, images) = parse("--max-pods 8 --max-events 64 --max-connections 8").expect("it is right");
        assert_eq!((flags.pods, flags.events, flags.connections), (Some(8), Some(64), Some(8)));
        assert_eq!(images, None);
        let of = |line: &str| parse(line).expect(line).1.expect(line);
        assert_eq!(
            of("--image-gc-high-threshold 85"),
            ImageCollection { high: 85, low: 80, minimum_age: Duration::from_secs(120), maximum_age: None }
        );
        assert_eq!(
            of("--image-gc-high-threshold 60 --image-gc-low-threshold 0 --minimum-image-ttl-duration 1m30s"),
            ImageCollection { high: 60, low: 0, minimum_age: Duration::from_secs(90), maximum_age: None }
        );
        assert_eq!(of("--image-maximum-gc-age 168h").maximum_age, Some(Duration::from_secs(7 * 24 * 3600)));
        assert_eq!(parse("--image-maximum-gc-age 0s").expect("it is off").1, None);
        let (flags, _) =
            parse("--eviction-hard nodefs.available<5% --eviction-pressure-transition-period 1m")
                .expect("right");
        assert_eq!(Ok(flags.eviction.thresholds), Thresholds::parse("nodefs.available<5%"));
        assert_eq!(flags.eviction.transition, Duration::from_secs(60));
    }

    #[test]
    fn an_invalid_limit_is_rejected_with_the_name_of_its_flag() {
        for (line, words) in [
            ("--max-pods 0", "0 for --max-pods: must be from 1 to 110"),
            ("--max-pods 111", "111 for --max-pods: must be from 1 to 110"),
            ("--max-pods many", "--max-pods"),
            ("--max-events 0", "0 for --max-events: must be from 1 to 10000"),
            ("--max-connections 3", "3 for --max-connections: must be from 4 to 1024"),
            ("--eviction-hard memory.free<1", "--eviction-hard: unknown signal \"memory.free\""),
            ("--image-gc-high-threshold 100", "100 for --image-gc-high-threshold: must be from 1 to 99"),
            ("--image-gc-low-threshold 50", "--image-gc-low-threshold needs --image-gc-high-threshold"),
            (
                "--minimum-image-ttl-duration 1m",
                "--minimum-image-ttl-duration needs --image-gc-high-threshold",
            ),
            (
                "--image-gc-high-threshold 50 --image-gc-low-threshold 50",
                "50 for --image-gc-low-threshold: must be less than --image-gc-high-threshold, 50",
            ),
            (
                "--image-gc-high-threshold 50 --minimum-image-ttl-duration soon",
                "--minimum-image-ttl-duration",
            ),
        ] {
            let why = parse(line).expect_err(line);
            assert!(why.contains(words), "{why}");
        }
    }
}
