// WebSocket echo on uWebSockets: `ws-uwebsockets IP:PORT` echoes on every path, on one thread.

#include <cstdlib>
#include <iostream>
#include <string>

#include "App.h"

struct Nothing {};

int main(int argc, char **argv) {
    std::string addr = argc == 2 ? argv[1] : "";
    size_t colon = addr.rfind(':');
    if (colon == std::string::npos) {
        std::cerr << "ws-uwebsockets: an address is missing; usage: ws-uwebsockets IP:PORT" << std::endl;
        return 2;
    }
    std::string host = addr.substr(0, colon);
    int port = std::atoi(addr.c_str() + colon + 1);
    bool listening = false;
    uWS::App()
        .ws<Nothing>("/*", {
            .compression = uWS::DISABLED,
            .maxPayloadLength = 16 * 1024 * 1024,
            .idleTimeout = 0,
            // Far over what any load has in flight: nothing is dropped.
            .maxBackpressure = 1024 * 1024 * 1024,
            .sendPingsAutomatically = false,
            .message = [](auto *ws, std::string_view message, uWS::OpCode opcode) {
                ws->send(message, opcode);
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
