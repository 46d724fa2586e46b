// WebSocket echo on Babl: `java … Echo IP:PORT` echoes on every path, on one thread, besides the accepting one.

import com.aitusoftware.babl.config.BablConfig;
import com.aitusoftware.babl.config.DeploymentMode;
import com.aitusoftware.babl.user.Application;
import com.aitusoftware.babl.user.ContentType;
import com.aitusoftware.babl.websocket.BablServer;
import com.aitusoftware.babl.websocket.DisconnectReason;
import com.aitusoftware.babl.websocket.SendResult;
import com.aitusoftware.babl.websocket.Session;
import com.aitusoftware.babl.websocket.SessionContainers;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.BusySpinIdleStrategy;
import org.agrona.concurrent.ShutdownSignalBarrier;

final class Echo implements Application {
    private static final int BACKLOG = 1024;
    private static final int SESSIONS_MAX = 20_000;
    private static final int MESSAGE_BYTES_MAX = 4 << 20; // Babl refuses 8 MiB

    public static void main(String[] args) throws Exception {
        int colon = args.length == 1 ? args[0].lastIndexOf(':') : -1;
        if (colon < 0) {
            System.err.println("ws-babl: an address is missing; usage: ws-babl IP:PORT");
            System.exit(2);
        }
        String host = args[0].substring(0, colon);
        int port = Integer.parseInt(args[0].substring(colon + 1));
        if (port == 0) {
            // Babl does not report the port that it gets for port 0.
            try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getByName(host))) {
                port = free.getLocalPort();
            }
        }
        // The directory of Babl's counters, which are memory-mapped files.
        Path directory = Files.createTempDirectory(Path.of("/dev/shm"), "ws-babl-");
        BablConfig config = new BablConfig();
        config.applicationConfig().application(new Echo());
        config.sessionContainerConfig()
            .bindAddress(host)
            .listenPort(port)
            .connectionBacklog(BACKLOG)
            .activeSessionLimit(SESSIONS_MAX)
            .serverDirectory(directory.toString())
            .deploymentMode(DeploymentMode.DIRECT)
            .serverIdleStrategySupplier(BusySpinIdleStrategy::new);
        config.sessionConfig()
            .maxBufferSize(2 * MESSAGE_BYTES_MAX)
            .maxSessionDecodeBufferSize(MESSAGE_BYTES_MAX)
            .maxWebSocketFrameLength(MESSAGE_BYTES_MAX);
        config.socketConfig().tcpNoDelay(true);
        try (SessionContainers containers = BablServer.launch(config)) {
            containers.start();
            System.out.println("listening echo " + host + ":" + port);
            new ShutdownSignalBarrier().await();
        } finally {
            try (var files = Files.walk(directory)) {
                files.sorted(java.util.Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
        System.exit(0); // the accepting thread is still running
    }

    @Override
    public int onSessionConnected(Session session) {
        return SendResult.OK;
    }

    @Override
    public int onSessionDisconnected(Session session, DisconnectReason reason) {
        return SendResult.OK;
    }

    @Override
    public int onSessionMessage(
            Session session, ContentType contentType, DirectBuffer message, int offset, int length) {
        return session.send(contentType, message, offset, length);
    }
}
