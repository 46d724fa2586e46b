//! [`Members`]: which clients are in which consumer groups, and which partitions each is to read.

use std::collections::BTreeMap;

use super::Status;
use super::catalogue::{GroupId, TopicId};

/// The members of all consumer groups. They last as long as the connections of the clients, so no journal has them.
///
/// The partitions of a topic are dealt out to the members of a group one by one, again whenever a member joins or
/// leaves, or the number of partitions changes. A member that has read from a partition that another one gets then, and
/// has not stored the offset yet, has its messages read again: each message is delivered at least once.
#[derive(Debug, Default)]
pub struct Members {
    groups: BTreeMap<GroupId, Vec<Member>>,
}

/// A client in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The client.
    pub client: u32,
    /// The partitions that it is to read, in order.
    pub partitions: Vec<u32>,
    /// Which of them is next when it names none.
    next: usize,
}

impl Members {
    /// The members of a group.
    pub fn of(&self, group: GroupId) -> &[Member] {
        self.groups.get(&group).map_or(&[], Vec::as_slice)
    }

    /// The groups that a client is in.
    pub fn groups_of(&self, client: u32) -> impl Iterator<Item = GroupId> {
        let is_in = move |members: &[Member]| members.iter().any(|member| member.client == client);
        self.groups.iter().filter(move |(_, members)| is_in(members)).map(|(&group, _)| group)
    }

    /// How many groups each client is in.
    pub fn group_counts(&self) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for member in self.groups.values().flatten() {
            *counts.entry(member.client).or_default() += 1;
        }
        counts
    }

    /// Adds a client to a group of a topic with `partitions` partitions. Nothing changes if it is in it already.
    pub fn join(&mut self, group: GroupId, client: u32, partitions: usize) {
        let members = self.groups.entry(group).or_default();
        if members.iter().all(|member| member.client != client) {
            members.push(Member { client, partitions: Vec::new(), next: 0 });
            deal(members, partitions);
        }
    }

    /// Removes a client from a group.
    ///
    /// # Errors
    /// It is not in it.
    pub fn leave(&mut self, group: GroupId, client: u32, partitions: usize) -> Result<(), Status> {
        let members = self.groups.get_mut(&group).ok_or(Status::ConsumerGroupMemberNotFound)?;
        let before = members.len();
        members.retain(|member| member.client != client);
        if members.len() == before {
            return Err(Status::ConsumerGroupMemberNotFound);
        }
        deal(members, partitions);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }

    /// Removes the clients that `is_here` does not know from all groups. `partitions` is called for each group that
    /// changes.
    pub fn retain(&mut self, is_here: impl Fn(u32) -> bool, partitions: impl Fn(TopicId) -> usize) {
        self.groups.retain(|group, members| {
            let before = members.len();
            members.retain(|member| is_here(member.client));
            if members.len() < before {
                deal(members, partitions(group.at));
            }
            !members.is_empty()
        });
    }

    /// Deals out the partitions of a topic, whose number has changed.
    pub fn repartition(&mut self, topic: TopicId, partitions: usize) {
        let of_topic = self.groups.iter_mut().filter(|(group, _)| group.at == topic);
        of_topic.for_each(|(_, members)| deal(members, partitions));
    }

    /// Removes the groups that `is_gone` says are deleted.
    pub fn remove(&mut self, is_gone: impl Fn(GroupId) -> bool) {
        self.groups.retain(|&group, _| !is_gone(group));
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
        let members = self.groups.get_mut(&group).into_iter().flatten();
        let mut members = members.filter(|member| member.client == client);
        let member = members.next().ok_or(Status::ConsumerGroupMemberNotFound)?;
        if let Some(named) = named {
            return Ok(member.partitions.contains(&named).then_some(named));
        }
        let partition = member.partitions.get(member.next).copied();
        if advance && partition.is_some() {
            member.next = (member.next + 1) % member.partitions.len();
        }
        Ok(partition)
    }
}

fn deal(members: &mut [Member], partitions: usize) {
    let count = members.len();
    for (n, member) in members.iter_mut().enumerate() {
        member.partitions =
            (n..partitions).step_by(count).map(|partition| partition as u32).collect();
        member.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId { at: TopicId { stream: 1, topic: 2 }, group: 3 };

    fn dealt(members: &Members) -> Vec<(u32, Vec<u32>)> {
        members.of(GROUP).iter().map(|member| (member.client, member.partitions.clone())).collect()
    }

    #[test]
    fn each_partition_has_one_reader_whoever_comes_and_goes() {
        let mut members = Members::default();
        for count in 1..8 {
            members.join(GROUP, count, 5);
            members.join(GROUP, count, 5);
            let mut all: Vec<_> =
                dealt(&members).into_iter().flat_map(|(_, partitions)| partitions).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4], "{count} members");
            assert_eq!(members.of(GROUP).len(), count as usize);
        }
        members.retain(|client| client > 5, |_| 5);
        assert_eq!(dealt(&members), [(6, vec![0, 2, 4]), (7, vec![1, 3])]);
        members.repartition(GROUP.at, 3);
        assert_eq!(dealt(&members), [(6, vec![0, 2]), (7, vec![1])]);
        members.leave(GROUP, 6, 3).unwrap();
        assert_eq!(members.leave(GROUP, 6, 3), Err(Status::ConsumerGroupMemberNotFound));
        assert_eq!(dealt(&members), [(7, vec![0, 1, 2])]);
        assert_eq!(members.groups_of(7).collect::<Vec<_>>(), [GROUP]);
        assert_eq!(members.group_counts(), BTreeMap::from([(7, 1)]));
        members.remove(|group| group == GROUP);
        assert_eq!(members.of(GROUP), []);
        assert_eq!(members.groups_of(7).count(), 0);
    }

    #[test]
    fn the_partitions_of_a_member_take_turns() {
        let mut members = Members::default();
        let at = |members: &mut Members, client, named, advance| {
            members.partition(GROUP, client, named, advance)
        };
        assert_eq!(at(&mut members, 7, None, true), Err(Status::ConsumerGroupMemberNotFound));
        members.join(GROUP, 7, 3);
        for expected in [0, 1, 2, 0] {
            assert_eq!(at(&mut members, 7, None, false), Ok(Some(expected)));
            assert_eq!(at(&mut members, 7, None, true), Ok(Some(expected)));
        }
        members.join(GROUP, 8, 3);
        assert_eq!(at(&mut members, 7, Some(1), true), Ok(None), "another member has it");
        assert_eq!(at(&mut members, 8, Some(1), true), Ok(Some(1)));
        members.repartition(GROUP.at, 0);
        assert_eq!(at(&mut members, 7, None, true), Ok(None));
    }
}
