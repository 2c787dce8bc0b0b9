//! The file format of a pod's record, which survives a reboot. Pure.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::facts::{
    ClientCondition, ConditionType, ContainerRecord, FoundCondition, LastShown, PodPhase, Record,
};
use crate::time::{Anchor, Instant, Moment, Timestamp};

/// The presets and the priority with which a pod was admitted, as JSON that the core does not interpret;
/// `None` if there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admitted<'a> {
    /// The presets that were applied to the pod.
    pub presets: Option<&'a RawValue>,
    /// The pod's priority.
    pub priority: Option<&'a RawValue>,
}

/// Parses a record file for an agent that runs in the boot `boot_id`.
///
/// # Errors
/// The bytes are not a record.
pub fn parse(bytes: &[u8], boot_id: &str) -> Result<Box<Record>, serde_json::Error> {
    serde_json::from_slice::<OnFlash<'_>>(bytes).map(|record| Box::new(record.into_record(boot_id)))
}

/// Parses a record file, and returns what the pod was admitted with.
///
/// # Errors
/// The bytes are not a record.
pub fn admitted(bytes: &[u8]) -> Result<Admitted<'_>, serde_json::Error> {
    let record = serde_json::from_slice::<OnFlash<'_>>(bytes)?;
    Ok(Admitted { presets: record.presets, priority: record.priority })
}

/// The bytes of the record file for `record`, written in the boot `boot_id`.
pub fn render(record: &Record, boot_id: &str, admitted: Admitted<'_>, anchor: Anchor) -> Vec<u8> {
    let record = OnFlash {
        presets: admitted.presets,
        priority: admitted.priority,
        ..OnFlash::new(record, boot_id, anchor)
    };
    serde_json::to_vec(&record).expect("a record has no maps with odd keys")
}

/// A record as it is written. Two boots share only wall time; the instant is kept beside it, for an agent of
/// the same boot.
#[derive(Serialize, Deserialize)]
struct OnFlash<'a> {
    version: u32,
    boot_id: String,
    phase: PodPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_time: Option<TimeOnFlash>,
    containers: Vec<ContainerRecord<TimeOnFlash>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deletion_grace_period_seconds: Option<u64>,
    /// Absent in files of versions without readiness gates.
    #[serde(rename = "given", default, skip_serializing_if = "Vec::is_empty")]
    client_conditions: Vec<ClientCondition>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allocated: Vec<[String; 4]>,
    /// The rest of the status that a finished pod continues to show. Absent in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<LastOnFlash>,
    /// Presets with which the pod was admitted. The core does not interpret them.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    presets: Option<&'a RawValue>,
    /// The priority with which the pod was admitted. Absent in files of versions without priorities.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    priority: Option<&'a RawValue>,
}

#[derive(Serialize, Deserialize)]
struct LastOnFlash {
    /// `type`, whether `status` is `True`, and `lastTransitionTime`.
    conditions: Vec<(String, bool, TimeOnFlash)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip: Option<Ipv4Addr>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct TimeOnFlash {
    wall: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<Instant>,
}

impl TimeOnFlash {
    fn new(moment: Moment, anchor: Anchor) -> TimeOnFlash {
        let boot = match moment {
            Moment::ThisBoot(instant) => Some(instant),
            Moment::Earlier(_) => None,
        };
        TimeOnFlash { wall: moment.timestamp(anchor), boot }
    }

    fn into_moment(self, same_boot: bool) -> Moment {
        match self.boot {
            Some(instant) if same_boot => Moment::ThisBoot(instant),
            Some(_) | None => Moment::Earlier(self.wall),
        }
    }
}

/// The version of the file's layout. A later version may add fields, never change these.
const VERSION: u32 = 1;

impl OnFlash<'_> {
    fn new(record: &Record, boot_id: &str, anchor: Anchor) -> OnFlash<'static> {
        let time = |moment| TimeOnFlash::new(moment, anchor);
        OnFlash {
            version: VERSION,
            boot_id: boot_id.to_owned(),
            phase: record.phase,
            reason: record.reason.clone(),
            message: record.message.clone(),
            start_time: record.start_time.map(time),
            containers: record.containers.iter().map(|one| one.clone().with_times(time)).collect(),
            deletion_grace_period_seconds: record.deletion_grace_period_seconds,
            client_conditions: record.client_conditions.clone(),
            allocated: record.allocated.clone(),
            last: record.last.as_ref().map(|last| LastOnFlash {
                conditions: last
                    .conditions
                    .iter()
                    .map(|one| (one.kind.as_str().to_owned(), one.status, time(one.since)))
                    .collect(),
                ip: last.ip,
            }),
            presets: None,
            priority: None,
        }
    }

    fn into_record(self, boot_id: &str) -> Record {
        let same_boot = !boot_id.is_empty() && self.boot_id == boot_id;
        let moment = |time: TimeOnFlash| time.into_moment(same_boot);
        Record {
            phase: self.phase,
            reason: self.reason,
            message: self.message,
            start_time: self.start_time.map(moment),
            containers: self.containers.into_iter().map(|one| one.with_times(moment)).collect(),
            deletion_grace_period_seconds: self.deletion_grace_period_seconds,
            client_conditions: self.client_conditions,
            allocated: self.allocated,
            last: self.last.map(|last| {
                // A condition type of a later version is not known here.
                let condition = |(kind, status, since): (String, bool, TimeOnFlash)| {
                    let kind = ConditionType::ALL.into_iter().find(|known| known.as_str() == kind)?;
                    Some(FoundCondition { kind, status, since: moment(since) })
                };
                let conditions = last.conditions.into_iter().filter_map(condition).collect();
                Box::new(LastShown { conditions, ip: last.ip })
            }),
        }
    }
}
