import static java.math.BigInteger.ZERO;

import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.apache.iggy.client.blocking.tcp.IggyTcpClient;
import org.apache.iggy.consumergroup.Consumer;
import org.apache.iggy.exception.IggyServerException;
import org.apache.iggy.identifier.ConsumerId;
import org.apache.iggy.identifier.StreamId;
import org.apache.iggy.identifier.TopicId;
import org.apache.iggy.message.Message;
import org.apache.iggy.message.Partitioning;
import org.apache.iggy.message.PolledMessages;
import org.apache.iggy.message.PollingStrategy;
import org.apache.iggy.topic.CompressionAlgorithm;

/**
 * Iggy's Java client against the server: what it has of streams, topics, partitions, messages, consumer groups and
 * offsets.
 *
 * <p>Client.java TRANSPORT ADDR PASSWORD MESSAGES, where TRANSPORT is `tcp`: it has no other.
 */
class Client {
    static final int BATCH = 1000;

    static IggyTcpClient connected(String addr, String password) {
        int colon = addr.lastIndexOf(':');
        var client = IggyTcpClient.builder()
                .host(addr.substring(0, colon))
                .port(Integer.parseInt(addr.substring(colon + 1)))
                .build();
        client.connect();
        client.users().login("iggy", password);
        return client;
    }

    static void expect(boolean is, Object saw) {
        if (!is) {
            throw new AssertionError(saw);
        }
    }

    /** Fails unless the operation is refused with this status. */
    static void refused(int status, Runnable operation) {
        try {
            operation.run();
        } catch (IggyServerException refusal) {
            expect(refusal.getRawErrorCode() == status, "status " + refusal.getRawErrorCode() + ", not " + status);
            return;
        }
        throw new AssertionError("not refused with " + status);
    }

    static String text(int n) {
        return n + ": " + "some bytes ".repeat(n % 90);
    }

    static List<Message> texts(int first, int end) {
        return IntStream.range(first, end).mapToObj(n -> Message.of(text(n))).toList();
    }

    /** Fails unless the messages are those from `first` on, in order. */
    static void check(PolledMessages polled, int first, int count) {
        expect(polled.messages().size() == count, polled.messages().size() + " messages, not " + count);
        for (int n = 0; n < count; n++) {
            var message = polled.messages().get(n);
            var offset = message.header().offset().intValueExact();
            expect(offset == first + n, "offset " + offset + ", not " + (first + n));
            var payload = new String(message.payload(), StandardCharsets.UTF_8);
            expect(payload.equals(text(first + n)), "message " + (first + n) + " differs: " + payload);
        }
    }

    public static void main(String[] arguments) {
        String addr = arguments[1], password = arguments[2];
        int messages = Integer.parseInt(arguments[3]);
        try (var client = connected(addr, password); var producer = connected(addr, password)) {
            commands(client, addr);
            manyMessages(client, producer, messages);
        }
        System.out.println("tcp: " + messages + " messages each way, in order, unchanged");
    }

    static void commands(IggyTcpClient client, String addr) {
        client.system().ping();
        var me = client.system().getMe();
        expect(client.system().getClients().stream().anyMatch(it -> it.clientId().equals(me.clientId())), me);
        refused(42, () -> connected(addr, "wrong"));

        var streams = client.streams();
        var stream = StreamId.of("java");
        expect(streams.getStream(stream).isEmpty(), "a stream before it is created");
        streams.createStream("before");
        refused(1012, () -> streams.createStream("before"));
        refused(1013, () -> streams.createStream("a/b"));
        streams.updateStream(StreamId.of("before"), "java");
        expect(streams.getStreams().stream().anyMatch(it -> it.name().equals("java")), "it is not listed");

        var topics = client.topics();
        var topic = TopicId.of("some");
        topics.createTopic(stream, 2L, CompressionAlgorithm.None, ZERO, ZERO, Optional.empty(), "some");
        refused(2013, () -> topics.createTopic(
                stream, 1L, CompressionAlgorithm.None, ZERO, ZERO, Optional.empty(), "some"));
        client.partitions().createPartitions(stream, topic, 2L);
        client.partitions().deletePartitions(stream, topic, 1L);
        var details = topics.getTopic(stream, topic).orElseThrow();
        expect(details.partitionsCount() == 3 && details.partitions().size() == 3, details);
        expect(topics.getTopics(stream).size() == 1, "topics");

        var consumer = Consumer.of(7L);
        var partition = Optional.of(1L);
        client.messages().sendMessages(stream, topic, Partitioning.partitionId(1L), texts(0, 10));
        java.util.function.BiFunction<PollingStrategy, Long, PolledMessages> poll = (strategy, count) ->
                client.messages().pollMessages(stream, topic, partition, consumer, strategy, count, false);
        check(poll.apply(PollingStrategy.first(), 4L), 0, 4);
        check(poll.apply(PollingStrategy.last(), 3L), 7, 3);
        check(poll.apply(PollingStrategy.offset(BigInteger.valueOf(8)), 100L), 8, 2);
        check(poll.apply(PollingStrategy.timestamp(ZERO), 100L), 0, 10);
        client.consumerOffsets().storeConsumerOffset(stream, topic, partition, consumer, BigInteger.valueOf(5));
        var stored = client.consumerOffsets().getConsumerOffset(stream, topic, partition, consumer).orElseThrow();
        expect(stored.storedOffset().intValueExact() == 5 && stored.currentOffset().intValueExact() == 9, stored);
        check(poll.apply(PollingStrategy.next(), 2L), 6, 2);
        refused(3007, () -> client.messages().pollMessages(
                stream, topic, Optional.of(99L), consumer, PollingStrategy.first(), 1L, false));

        // By key all go to one partition; balanced they go to all.
        client.messages().sendMessages(stream, topic, Partitioning.messagesKey("a key"), texts(0, 3));
        for (int n = 0; n < 3; n++) {
            client.messages().sendMessages(stream, topic, Partitioning.balanced(), texts(0, 1));
        }
        var count = topics.getTopic(stream, topic).orElseThrow().messagesCount().intValueExact();
        expect(count == 16, count + " messages, not 16");

        var groups = client.consumerGroups();
        var group = ConsumerId.of("readers");
        groups.createConsumerGroup(stream, topic, "readers");
        refused(5004, () -> groups.createConsumerGroup(stream, topic, "readers"));
        groups.joinConsumerGroup(stream, topic, group);
        expect(groups.getConsumerGroup(stream, topic, group).orElseThrow().membersCount() == 1, "not one member");
        groups.leaveConsumerGroup(stream, topic, group);
        expect(groups.getConsumerGroup(stream, topic, group).orElseThrow().membersCount() == 0, "a member");
        expect(groups.getConsumerGroups(stream, topic).size() == 1, "groups");
        groups.deleteConsumerGroup(stream, topic, group);
        expect(groups.getConsumerGroup(stream, topic, group).isEmpty(), "a group that was deleted");

        topics.deleteTopic(stream, topic);
        refused(2010, () -> topics.deleteTopic(stream, topic));
        expect(client.system().getStats().streamsCount() >= 1, "streams");
        streams.deleteStream(stream);
        refused(1009, () -> streams.deleteStream(stream));
    }

    static void manyMessages(IggyTcpClient client, IggyTcpClient producer, int messages) {
        client.streams().createStream("java-many");
        var stream = StreamId.of("java-many");
        var topic = TopicId.of("many");
        client.topics().createTopic(stream, 1L, CompressionAlgorithm.None, ZERO, ZERO, Optional.empty(), "many");
        var producing = CompletableFuture.runAsync(() -> {
            for (int first = 0; first < messages; first += BATCH) {
                var batch = new ArrayList<>(texts(first, Math.min(first + BATCH, messages)));
                producer.messages().sendMessages(stream, topic, Partitioning.partitionId(0L), batch);
            }
        });
        int received = 0;
        while (received < messages) {
            var polled = client.messages().pollMessages(
                    stream, topic, Optional.of(0L), Consumer.of(1L), PollingStrategy.next(), (long) BATCH, true);
            check(polled, received, polled.messages().size());
            received += polled.messages().size();
            expect(received > 0 || !producing.isCompletedExceptionally(), producing);
        }
        producing.join();
    }
}
