// WebSocket echo on uWebSockets: `ws-uwebsockets IP:PORT [--deflate]` echoes on every path but two, on one thread. With
// --deflate it echoes compressed messages compressed, each independently. What is sent to /publish goes, as text, to all
// connections of /subscribe.

#include <cstdlib>
#include <iostream>
#include <string>

#include "App.h"

struct NoUserData {};

int main(int argc, char **argv) {
    std::string addr = argc >= 2 ? argv[1] : "";
    bool deflate = argc == 3 && std::string(argv[2]) == "--deflate";
    size_t colon = addr.rfind(':');
    if (colon == std::string::npos || argc > 2 + deflate) {
        std::cerr << "ws-uwebsockets: usage: ws-uwebsockets IP:PORT [--deflate]" << std::endl;
        return 2;
    }
    std::string host = addr.substr(0, colon);
    int port = std::atoi(addr.c_str() + colon + 1);
    bool listening = false;
    uWS::App app;
    app
        .ws<NoUserData>("/publish", {
            .compression = uWS::DISABLED,
            .maxPayloadLength = 16 * 1024 * 1024,
            .idleTimeout = 0,
            .sendPingsAutomatically = false,
            .message = [&app](auto *, std::string_view message, uWS::OpCode) {
                app.publish("feed", message, uWS::OpCode::TEXT);
            },
        })
        .ws<NoUserData>("/subscribe", {
            .compression = uWS::DISABLED,
            .idleTimeout = 0,
            // What owned-io's server keeps of a topic. A subscriber that is further behind misses messages.
            .maxBackpressure = 1024 * 1024,
            .sendPingsAutomatically = false,
            .open = [](auto *ws) { ws->subscribe("feed"); },
        })
        .ws<NoUserData>("/*", {
            .compression = deflate ? uWS::CompressOptions(uWS::SHARED_COMPRESSOR | uWS::SHARED_DECOMPRESSOR)
                                   : uWS::DISABLED,
            .maxPayloadLength = 16 * 1024 * 1024,
            .idleTimeout = 0,
            // More than any load has in flight, so that nothing is dropped.
            .maxBackpressure = 1024 * 1024 * 1024,
            .sendPingsAutomatically = false,
            .message = [deflate](auto *ws, std::string_view message, uWS::OpCode opcode) {
                ws->send(message, opcode, deflate);
            },
        })
        .listen(host, port, [&](us_listen_socket_t *socket) {
            if (socket) {
                listening = true;
                int port = us_socket_local_port(0, (us_socket_t *) socket);
                std::cout << "listening echo " << host << ":" << port << std::endl;
            }
        })
        .run();
    if (!listening) {
        std::cerr << "ws-uwebsockets: cannot listen on " << addr << std::endl;
        return 1;
    }
}
