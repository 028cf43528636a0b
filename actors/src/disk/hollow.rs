//! What stands for a disk in a simulation of capacity: a mock. It keeps what describes blocks, and of their bytes only how
//! many there are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_runtime::blob::{BlobError, BlobErrorKind, Doing, Listed};
use millstream_runtime::{Actor, Ctx, ReplyOut};

use super::DiskCost;
use crate::store::{Got, Io, Payload, Told, Wish};

/// Objects by name. Clones are the same store.
#[derive(Clone, Default)]
pub struct HollowStore(Arc<Mutex<BTreeMap<String, Vec<Payload>>>>);

impl HollowStore {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Payload>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, io: Io) -> Result<Got, BlobError> {
        let mut objects = self.objects();
        match io {
            Io::List { prefix } => {
                let listed =
                    objects.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
                let listed = listed.map(|(name, parts)| Listed {
                    name: name.clone(),
                    bytes: bytes(parts),
                    written_s: 0,
                });
                Ok(Got::Listed(listed.collect()))
            }
            Io::Put { name, parts } => {
                objects.insert(name, parts);
                Ok(Got::Done)
            }
            Io::Delete { name } => {
                objects.remove(&name);
                Ok(Got::Done)
            }
            Io::Read { name, ranges } => {
                let Some(parts) = objects.get(&name) else { return Err(missing(name)) };
                let read: Option<Vec<Payload>> = ranges.iter().map(|range| cut(parts, range)).collect();
                read.map(Got::Bytes).ok_or_else(|| missing(name))
            }
        }
    }
}

fn bytes(parts: &[Payload]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

fn missing(name: String) -> BlobError {
    let cause = "it was not written, or is shorter".to_owned();
    BlobError { doing: Doing::Read, name, kind: BlobErrorKind::Missing, cause }
}

/// A range of an object: hollow where all of it is, and otherwise with zeros in the place of what is.
fn cut(parts: &[Payload], range: &Range<u64>) -> Option<Payload> {
    let (mut at, mut pieces) = (0, Vec::new());
    for part in parts {
        let end = at + part.len() as u64;
        let (from, to) = (range.start.max(at), range.end.min(end));
        if from < to {
            pieces.push(part.slice((from - at) as usize..(to - at) as usize));
        }
        at = end;
    }
    if range.end > at {
        return None;
    }
    if pieces.iter().all(Payload::is_hollow) {
        return Some(Payload::hollow((range.end - range.start) as usize));
    }
    let mut bytes = Vec::new();
    for piece in pieces {
        bytes.extend_from_slice(&piece);
        bytes.resize(bytes.len() + if piece.is_hollow() { piece.len() } else { 0 }, 0);
    }
    Some(bytes.into())
}

/// See the module.
pub struct HollowDisk {
    store: HollowStore,
    told: ReplyOut<Told>,
    cost: DiskCost,
}

impl HollowDisk {
    /// Answers through `told`.
    pub fn new(store: HollowStore, told: ReplyOut<Told>, cost: DiskCost) -> Self {
        Self { store, told, cost }
    }
}

impl Actor for HollowDisk {
    type Message = Wish;

    fn handle(&mut self, wish: Wish, ctx: &mut Ctx<'_>) {
        ctx.spend(self.cost.of(&wish));
        let Wish { id, io } = wish;
        self.told.reply(Told { id, result: self.store.carry_out(io) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_hollow_is_read_as_it_was_written() {
        let store = HollowStore::default();
        let parts = vec![Payload::from(vec![1, 2, 3]), Payload::hollow(1 << 40), Payload::from(vec![4, 5])];
        store.carry_out(Io::Put { name: "a/b".to_owned(), parts }).expect("it is kept");
        let read =
            |range: Range<u64>| store.carry_out(Io::Read { name: "a/b".to_owned(), ranges: vec![range] });
        let end = 3 + (1 << 40);
        assert_eq!(read(0..2), Ok(Got::Bytes(vec![Payload::from(vec![1, 2])])));
        assert_eq!(read(end - 1..end + 2), Ok(Got::Bytes(vec![Payload::from(vec![0, 4, 5])])));
        assert_eq!(read(3..end), Ok(Got::Bytes(vec![Payload::hollow(1 << 40)])));
        assert!(read(0..end + 3).is_err());
        let listed = vec![Listed { name: "a/b".to_owned(), bytes: end + 2, written_s: 0 }];
        assert_eq!(store.carry_out(Io::List { prefix: "a".to_owned() }), Ok(Got::Listed(listed)));
        store.carry_out(Io::Delete { name: "a/b".to_owned() }).expect("it is gone");
        assert!(read(0..1).is_err());
    }
}
