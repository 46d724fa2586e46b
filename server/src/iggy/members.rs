//! [`Members`]: which clients are in which consumer groups, and which partitions each is to read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use owned_io::coop;

use super::Status;
use super::catalogue::{GroupId, TopicId};

/// The most memberships: pairs of a client and a group that it is in. They take at most 120 bytes each, 31 MB in all,
/// which is in the account of no connection.
pub const MEMBERSHIPS_MAX: usize = 262_144;

/// The members of all consumer groups. They last as long as the connections of the clients, so no journal has them.
///
/// The partitions of a topic are dealt out to the members of a group one by one, again whenever a member joins or
/// leaves, or the number of partitions changes. A member that has read from a partition that another one gets then, and
/// has not stored the offset yet, has its messages read again: each message is delivered at least once.
#[derive(Debug, Default)]
pub struct Members {
    /// The groups that have members.
    groups: BTreeMap<GroupId, Group>,
    /// Each client with each group that it is in. At most [`MEMBERSHIPS_MAX`].
    memberships: BTreeSet<(u32, GroupId)>,
}

/// A client in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The client.
    pub client: u32,
    /// The partitions that it is to read, in order.
    pub partitions: Vec<u32>,
}

#[derive(Debug, Default)]
struct Group {
    /// How many partitions its topic has.
    partitions: u32,
    /// In the order in which they joined, which says what each [is dealt](dealt).
    members: Vec<GroupMember>,
}

#[derive(Debug)]
struct GroupMember {
    client: u32,
    /// Which of its partitions is next when it names none.
    next: usize,
}

impl Members {
    /// The members of a group, with the partitions of each.
    pub fn of(&self, group: GroupId) -> Vec<Member> {
        let Some(Group { partitions, members }) = self.groups.get(&group) else {
            return Vec::new();
        };
        let count = members.len();
        coop::consume(MEMBERSHIP_NANOS * count as u64 + VISIT_NANOS * u64::from(*partitions));
        let members = members.iter().enumerate().map(|(position, member)| Member {
            client: member.client,
            partitions: dealt(position, count, *partitions).collect(),
        });
        members.collect()
    }

    /// How many members a group has.
    pub fn count(&self, group: GroupId) -> usize {
        self.groups.get(&group).map_or(0, |group| group.members.len())
    }

    /// The groups that a client is in.
    pub fn groups_of(&self, client: u32) -> impl Iterator<Item = GroupId> {
        self.memberships.range(memberships_of(client)).map(|&(_, group)| group)
    }

    /// How many groups each client is in.
    pub fn group_counts(&self) -> BTreeMap<u32, u32> {
        coop::consume(VISIT_NANOS * self.memberships.len() as u64);
        let mut counts = BTreeMap::new();
        for &(client, _) in &self.memberships {
            *counts.entry(client).or_default() += 1;
        }
        counts
    }

    /// Adds a client to a group of a topic with `partitions` partitions. Nothing changes if it is in it already.
    ///
    /// # Errors
    /// [`CannotCreateConsumerGroup`](Status::CannotCreateConsumerGroup): there are [`MEMBERSHIPS_MAX`] memberships.
    pub fn join(&mut self, group: GroupId, client: u32, partitions: u32) -> Result<(), Status> {
        if self.memberships.contains(&(client, group)) {
            return Ok(());
        }
        if self.memberships.len() >= MEMBERSHIPS_MAX {
            return Err(Status::CannotCreateConsumerGroup);
        }
        coop::consume(MEMBERSHIP_NANOS);
        self.memberships.insert((client, group));
        let group = self.groups.entry(group).or_default();
        group.members.push(GroupMember { client, next: 0 });
        group.deal(partitions);
        Ok(())
    }

    /// Removes a client from a group.
    ///
    /// # Errors
    /// It is not in it.
    pub fn leave(&mut self, group: GroupId, client: u32) -> Result<(), Status> {
        if !self.memberships.remove(&(client, group)) {
            return Err(Status::ConsumerGroupMemberNotFound);
        }
        coop::consume(MEMBERSHIP_NANOS);
        self.remove_members(group, |member| member == client);
        Ok(())
    }

    /// Removes clients from all their groups. Other groups are not visited.
    pub fn remove_clients(&mut self, clients: &BTreeSet<u32>) {
        let ranges = clients.iter().map(|&client| memberships_of(client));
        let removed: Vec<_> =
            ranges.flat_map(|range| self.memberships.range(range).copied()).collect();
        coop::consume(MEMBERSHIP_NANOS * removed.len() as u64);
        for membership in &removed {
            self.memberships.remove(membership);
        }
        // Each group is dealt once, however many of its members are removed.
        let groups: BTreeSet<_> = removed.into_iter().map(|(_, group)| group).collect();
        for group in groups {
            self.remove_members(group, |member| clients.contains(&member));
        }
    }

    /// Deals out the partitions of a topic, whose number has changed.
    pub fn repartition(&mut self, topic: TopicId, partitions: u32) {
        let group = |group| GroupId { at: topic, group };
        for (_, group) in self.groups.range_mut(group(0)..=group(u32::MAX)) {
            group.deal(partitions);
        }
    }

    /// Removes the groups that `is_gone` says are deleted.
    pub fn remove(&mut self, is_gone: impl Fn(GroupId) -> bool) {
        let Self { groups, memberships } = self;
        coop::consume(MEMBERSHIP_NANOS * groups.len() as u64);
        groups.retain(|&id, group| {
            let is_gone = is_gone(id);
            if is_gone {
                coop::consume(MEMBERSHIP_NANOS * group.members.len() as u64);
                for member in &group.members {
                    memberships.remove(&(member.client, id));
                }
            }
            !is_gone
        });
    }

    /// The partition for a member that names one, or none. Without a name its partitions take turns, and `advance`
    /// makes it the next one's turn. None: it has no partition, or the named one is another member's.
    ///
    /// # Errors
    /// The client is not in the group.
    pub fn partition(
        &mut self,
        group: GroupId,
        client: u32,
        named: Option<u32>,
        advance: bool,
    ) -> Result<Option<u32>, Status> {
        let group = self.groups.get_mut(&group).ok_or(Status::ConsumerGroupMemberNotFound)?;
        let Group { partitions, members } = group;
        let count = members.len();
        coop::consume(VISIT_NANOS * count as u64);
        let position = members.iter().position(|member| member.client == client);
        let position = position.ok_or(Status::ConsumerGroupMemberNotFound)?;
        if let Some(named) = named {
            let is_dealt = named < *partitions && named as usize % count == position;
            return Ok(is_dealt.then_some(named));
        }
        let member = &mut members[position];
        let mut dealt = dealt(position, count, *partitions);
        let dealt_count = dealt.len();
        let partition = dealt.nth(member.next);
        if advance && partition.is_some() {
            member.next = (member.next + 1) % dealt_count;
        }
        Ok(partition)
    }

    /// Removes members whose membership is removed already, and the group if it has no other.
    fn remove_members(&mut self, id: GroupId, is_removed: impl Fn(u32) -> bool) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.members.retain(|member| !is_removed(member.client));
        // A group that was large once does not keep the memory.
        if group.members.capacity() > 4 * group.members.len() {
            group.members.shrink_to(2 * group.members.len());
        }
        group.deal(group.partitions);
        if group.members.is_empty() {
            self.groups.remove(&id);
        }
    }
}

impl Group {
    /// Deals out the partitions after a change. Each member begins with its first one.
    fn deal(&mut self, partitions: u32) {
        coop::consume(VISIT_NANOS * self.members.len() as u64);
        self.partitions = partitions;
        self.members.iter_mut().for_each(|member| member.next = 0);
    }
}

/// The partitions of the member at `position` of `members`: every `members`-th one.
fn dealt(position: usize, members: usize, partitions: u32) -> impl ExactSizeIterator<Item = u32> {
    (position as u32..partitions).step_by(members)
}

/// The memberships that a client can have.
fn memberships_of(client: u32) -> RangeInclusive<(u32, GroupId)> {
    let group = |number| GroupId { at: TopicId { stream: number, topic: number }, group: number };
    (client, group(0))..=(client, group(u32::MAX))
}

/// Passing a member or a partition of a list. An estimate, like the next one.
const VISIT_NANOS: u64 = 2;

/// Adding, removing or listing a membership.
const MEMBERSHIP_NANOS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { at: TopicId { stream: 1, topic: 2 }, group: 3 };

    fn listed(members: &Members) -> Vec<(u32, Vec<u32>)> {
        members.of(GROUP).into_iter().map(|member| (member.client, member.partitions)).collect()
    }

    #[test]
    fn each_partition_has_one_reader_whoever_comes_and_goes() {
        let mut members = Members::default();
        for count in 1..8 {
            members.join(GROUP, count, 5).unwrap();
            members.join(GROUP, count, 5).unwrap();
            let mut all: Vec<_> =
                listed(&members).into_iter().flat_map(|(_, partitions)| partitions).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4], "{count} members");
            assert_eq!(members.of(GROUP).len(), count as usize);
            assert_eq!(members.count(GROUP), count as usize);
        }
        members.remove_clients(&(0..=5).collect());
        assert_eq!(listed(&members), [(6, vec![0, 2, 4]), (7, vec![1, 3])]);
        members.repartition(GROUP.at, 3);
        assert_eq!(listed(&members), [(6, vec![0, 2]), (7, vec![1])]);
        members.leave(GROUP, 6).unwrap();
        assert_eq!(members.leave(GROUP, 6), Err(Status::ConsumerGroupMemberNotFound));
        assert_eq!(listed(&members), [(7, vec![0, 1, 2])]);
        assert_eq!(members.groups_of(7).collect::<Vec<_>>(), [GROUP]);
        assert_eq!(members.group_counts(), BTreeMap::from([(7, 1)]));
        members.remove(|group| group == GROUP);
        assert_eq!((members.of(GROUP).len(), members.count(GROUP)), (0, 0));
        assert_eq!(members.groups_of(7).count(), 0);
        assert_eq!(members.leave(GROUP, 7), Err(Status::ConsumerGroupMemberNotFound));
    }

    #[test]
    fn the_partitions_of_a_member_take_turns() {
        let mut members = Members::default();
        let at = |members: &mut Members, client, named, advance| {
            members.partition(GROUP, client, named, advance)
        };
        assert_eq!(at(&mut members, 7, None, true), Err(Status::ConsumerGroupMemberNotFound));
        members.join(GROUP, 7, 3).unwrap();
        assert_eq!(at(&mut members, 8, None, true), Err(Status::ConsumerGroupMemberNotFound));
        for expected in [0, 1, 2, 0] {
            assert_eq!(at(&mut members, 7, None, false), Ok(Some(expected)));
            assert_eq!(at(&mut members, 7, None, true), Ok(Some(expected)));
        }
        members.join(GROUP, 8, 3).unwrap();
        assert_eq!(at(&mut members, 7, Some(1), true), Ok(None), "another member has it");
        assert_eq!(at(&mut members, 8, Some(1), true), Ok(Some(1)));
        assert_eq!(at(&mut members, 8, Some(3), true), Ok(None), "there is none");
        members.repartition(GROUP.at, 0);
        assert_eq!(at(&mut members, 7, None, true), Ok(None));
    }

    #[test]
    fn what_a_member_is_dealt_is_what_it_may_name() {
        for partitions in 0..5 {
            let mut members = Members::default();
            for client in 0..7 {
                members.join(GROUP, client, partitions).unwrap();
            }
            for (client, dealt) in listed(&members) {
                for named in 0..8 {
                    let found = members.partition(GROUP, client, Some(named), true);
                    assert_eq!(found, Ok(dealt.contains(&named).then_some(named)));
                }
                for _ in 0..3 {
                    let next = members.partition(GROUP, client, None, true);
                    assert_eq!(next, Ok(dealt.first().copied()), "none has more than one");
                }
            }
        }
    }

    #[test]
    fn memberships_are_limited_and_one_that_ends_makes_room() {
        const GROUPS: u32 = 16_384;
        let group = |group| GroupId { group, ..GROUP };
        let mut members = Members::default();
        for n in 0..MEMBERSHIPS_MAX as u32 {
            members.join(group(n % GROUPS), n / GROUPS, 1).unwrap();
        }
        let refused = members.join(group(0), 99, 1);
        assert_eq!(refused, Err(Status::CannotCreateConsumerGroup));
        assert_eq!(members.groups_of(99).count(), 0);
        assert_eq!(members.join(group(0), 0, 1), Ok(()), "it is in it already");
        members.leave(group(7), 0).unwrap();
        assert_eq!(members.join(group(0), 99, 1), Ok(()));
        assert_eq!(members.join(group(7), 0, 1), Err(Status::CannotCreateConsumerGroup));
        members.remove_clients(&BTreeSet::from([99]));
        assert_eq!(members.join(group(7), 0, 1), Ok(()));
        members.remove(|removed| removed == group(1));
        assert_eq!(members.join(group(0), 99, 1), Ok(()));
    }

    #[test]
    fn clients_that_leave_cost_the_work_of_their_own_groups() {
        let group = |group| GroupId { group, ..GROUP };
        let mut members = Members::default();
        for (client, groups) in [(1, 0..2), (2, 0..100), (3, 1..100)] {
            for number in groups {
                members.join(group(number), client, 2).unwrap();
            }
        }
        coop::refill();
        members.remove_clients(&BTreeSet::from([4]));
        assert_eq!(coop::spent_nanos(), 0, "it is in no group");
        members.remove_clients(&BTreeSet::from([1]));
        let left = 1 + 2; // the members of its groups
        assert_eq!(coop::spent_nanos(), 2 * MEMBERSHIP_NANOS + left * VISIT_NANOS);
        let member =
            |client, partitions: &[u32]| Member { client, partitions: partitions.to_vec() };
        assert_eq!(members.of(group(0)), [member(2, &[0, 1])]);
        for number in [1, 5] {
            assert_eq!(members.of(group(number)), [member(2, &[0]), member(3, &[1])]);
        }
        members.remove_clients(&BTreeSet::from([2, 3]));
        assert_eq!((members.groups.len(), members.memberships.len()), (0, 0));
    }

    #[test]
    fn a_group_that_was_large_does_not_keep_the_memory() {
        let mut members = Members::default();
        for client in 0..1_000 {
            members.join(GROUP, client, 3).unwrap();
        }
        members.remove_clients(&(0..500).collect());
        for client in 500..990 {
            members.leave(GROUP, client).unwrap();
        }
        assert_eq!(members.count(GROUP), 10);
        assert!(members.groups[&GROUP].members.capacity() <= 40);
    }
}
