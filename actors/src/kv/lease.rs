//! Leases: the right of a decode group to read the blocks and the state of a computed prompt until a deadline. A lease ends by
//! acknowledgement, cancel, expiry or the loss of its reader, and then its blocks go back to the pool; a late message
//! about it meets [`Stale`].

use std::collections::BTreeMap;

use millstream_runtime::Time;

use super::{BlockId, Owner, Pool, SlotId};
use crate::message::SequenceId;

/// Names a lease. The fence is the time of the grant, so that a group that was built again, and counts from 0 again,
/// never honours a lease of its earlier life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// Counted up by the group that grants.
    pub number: u64,
    /// Nanoseconds since the driver started, when it was granted.
    pub fence: u64,
}

/// The lease has ended, or was never granted in this life of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// What a lease covers.
#[derive(Debug)]
pub struct Lease {
    /// Whose prompt it is.
    pub sequence: SequenceId,
    /// The blocks, in the order of the sequence.
    pub blocks: Vec<BlockId>,
    /// The state beside them, where the model keeps one.
    pub slot: Option<SlotId>,
    /// Which decode group may read, by number.
    pub reader: usize,
    /// When the right ends. While no reader has been found it is the request's deadline.
    pub until: Time,
    /// Reads that a step in flight still makes; the blocks are not given back before it is done.
    pub reading: u32,
    /// Ended while a read was in flight.
    ended: bool,
}

/// The leases of one group.
#[derive(Debug, Default)]
pub struct Leases {
    next: u64,
    active: BTreeMap<u64, (u64, Lease)>,
}

impl Leases {
    /// Takes over blocks and slot of a sequence from the pool's ledger and makes a lease of them.
    pub fn grant(&mut self, pool: &mut Pool, now: Time, lease: NewLease) -> LeaseId {
        let id = LeaseId { number: self.next, fence: now.as_nanos() };
        self.next += 1;
        let (from, to) = (Owner::Sequence(lease.sequence), Owner::Lease(id.number));
        pool.transfer(&lease.blocks, from, to);
        if let Some(slot) = lease.slot {
            pool.state.transfer(slot, from, to);
        }
        let NewLease { sequence, blocks, slot, reader, until } = lease;
        let lease = Lease { sequence, blocks, slot, reader, until, reading: 0, ended: false };
        self.active.insert(id.number, (id.fence, lease));
        id
    }

    /// The lease, unless it has ended.
    pub fn get_mut(&mut self, id: LeaseId) -> Result<&mut Lease, Stale> {
        match self.active.get_mut(&id.number) {
            Some((fence, lease)) if *fence == id.fence && !lease.ended => Ok(lease),
            _ => Err(Stale),
        }
    }

    /// Ends a lease; its blocks are free at once, or when the last read in flight is done. Returns whose it was.
    pub fn end(&mut self, pool: &mut Pool, id: LeaseId) -> Result<SequenceId, Stale> {
        let lease = self.get_mut(id)?;
        lease.ended = true;
        let sequence = lease.sequence;
        self.release_if_over(pool, id.number);
        Ok(sequence)
    }

    /// A read that was counted in [`Lease::reading`] is done.
    pub fn read_done(&mut self, pool: &mut Pool, id: LeaseId) {
        if let Some((fence, lease)) = self.active.get_mut(&id.number)
            && *fence == id.fence
        {
            lease.reading -= 1;
            self.release_if_over(pool, id.number);
        }
    }

    /// Live leases that `wanted` picks, in the order they were granted.
    pub fn select(&self, wanted: impl Fn(&Lease) -> bool) -> Vec<LeaseId> {
        self.active
            .iter()
            .filter(|(_, (_, lease))| !lease.ended && wanted(lease))
            .map(|(&number, &(fence, _))| LeaseId { number, fence })
            .collect()
    }

    /// The next moment at which a lease runs out.
    pub fn next_end(&self) -> Option<Time> {
        self.active.values().filter(|(_, lease)| !lease.ended).map(|(_, lease)| lease.until).min()
    }

    /// Leases whose blocks are not free yet.
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// Whether all blocks have come back.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    fn release_if_over(&mut self, pool: &mut Pool, number: u64) {
        let over = self.active.get(&number).is_some_and(|(_, lease)| lease.ended && lease.reading == 0);
        if over && let Some((_, lease)) = self.active.remove(&number) {
            pool.give_back(lease.blocks, Owner::Lease(number));
            if let Some(slot) = lease.slot {
                pool.state.give_back(slot, Owner::Lease(number));
            }
        }
    }
}

/// What [`Leases::grant`] needs to know.
pub struct NewLease {
    /// Whose prompt it is; the present owner of the blocks.
    pub sequence: SequenceId,
    /// In the order of the sequence.
    pub blocks: Vec<BlockId>,
    /// The state beside them.
    pub slot: Option<SlotId>,
    /// Which decode group may read, by number.
    pub reader: usize,
    /// When the right ends.
    pub until: Time,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestId;

    fn granted(pool: &mut Pool, leases: &mut Leases, now: Time) -> LeaseId {
        let sequence = SequenceId { request: RequestId(1), attempt: 0 };
        let blocks = pool.take(2, Owner::Sequence(sequence)).unwrap();
        let slot = pool.state.take(Owner::Sequence(sequence));
        leases.grant(pool, now, NewLease { sequence, blocks, slot, reader: 0, until: Time::from_nanos(90) })
    }

    #[test]
    fn blocks_and_state_wait_for_the_read_in_flight() {
        let (mut pool, mut leases) = (Pool::new(4).with_slots(1), Leases::default());
        let id = granted(&mut pool, &mut leases, Time::from_nanos(5));
        leases.get_mut(id).unwrap().reading += 1;
        assert!(leases.end(&mut pool, id).is_ok());
        assert_eq!((pool.used(), pool.state.used(), leases.len()), (2, 1, 1));
        assert_eq!(leases.end(&mut pool, id), Err(Stale));
        leases.read_done(&mut pool, id);
        assert_eq!((pool.used(), pool.state.used(), leases.len()), (0, 0, 0));
    }

    #[test]
    fn a_new_life_refuses_the_leases_of_the_old_one() {
        let (mut pool, mut leases) = (Pool::new(4), Leases::default());
        let old = granted(&mut pool, &mut leases, Time::from_nanos(5));
        let (mut pool, mut leases) = (Pool::new(4), Leases::default());
        let new = granted(&mut pool, &mut leases, Time::from_nanos(9));
        assert_eq!(old.number, new.number);
        assert_eq!(leases.end(&mut pool, old), Err(Stale));
        assert!(leases.end(&mut pool, new).is_ok());
    }
}
