// WebSocket echo on Vert.x: `java … Echo IP:PORT` echoes on every path, on one event loop (netty's epoll).

import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.http.HttpServerOptions;

final class Echo {
    private static final int BACKLOG = 1024;
    private static final int MESSAGE_BYTES_MAX = 16 << 20;

    public static void main(String[] args) {
        int colon = args.length == 1 ? args[0].lastIndexOf(':') : -1;
        if (colon < 0) {
            System.err.println("ws-vertx: an address is missing; usage: ws-vertx IP:PORT");
            System.exit(2);
        }
        String host = args[0].substring(0, colon);
        int port = Integer.parseInt(args[0].substring(colon + 1));
        Vertx vertx = Vertx.vertx(new VertxOptions().setEventLoopPoolSize(1).setPreferNativeTransport(true));
        if (!vertx.isNativeTransportEnabled()) {
            System.err.println("ws-vertx: no epoll: " + vertx.unavailableNativeTransportCause());
            System.exit(1);
        }
        HttpServerOptions options = new HttpServerOptions()
            .setAcceptBacklog(BACKLOG)
            .setTcpNoDelay(true)
            .setMaxWebSocketFrameSize(MESSAGE_BYTES_MAX)
            .setMaxWebSocketMessageSize(MESSAGE_BYTES_MAX)
            .setPerFrameWebSocketCompressionSupported(false)
            .setPerMessageWebSocketCompressionSupported(false);
        vertx.createHttpServer(options)
            .webSocketHandler(socket -> {
                socket.binaryMessageHandler(socket::writeBinaryMessage);
                socket.textMessageHandler(socket::writeTextMessage);
            })
            .listen(port, host)
            .onSuccess(server -> System.out.println("listening echo " + host + ":" + server.actualPort()))
            .onFailure(error -> {
                System.err.println("ws-vertx: cannot listen on " + args[0] + ": " + error.getMessage());
                System.exit(1);
            });
    }
}
