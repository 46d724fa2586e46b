// WebSocket echo on gws: `ws-gws IP:PORT [--deflate]` echoes on every path, on as many cores as it may use. With
// --deflate it compresses each message independently, for clients that offer that.
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/lxzan/gws"
)

// How many clients may wait to be accepted. By default Go asks for as many as the system allows.
const backlog = 1024

type echo struct {
	gws.BuiltinEventHandler
}

func (echo) OnPing(socket *gws.Conn, payload []byte) {
	_ = socket.WritePong(payload)
}

func (echo) OnMessage(socket *gws.Conn, message *gws.Message) {
	defer message.Close()
	_ = socket.WriteMessage(message.Opcode, message.Bytes())
}

func main() {
	deflate := len(os.Args) == 3 && os.Args[2] == "--deflate"
	if len(os.Args) != 2 && !deflate {
		fail(2, "usage: ws-gws IP:PORT [--deflate]")
	}
	addr, err := netip.ParseAddrPort(os.Args[1])
	if err != nil || !addr.Addr().Is4() {
		fail(2, fmt.Sprintf("%q is not IP:PORT", os.Args[1]))
	}
	listener, err := listen(addr)
	if err != nil {
		fail(1, fmt.Sprintf("cannot listen on %v: %v", addr, err))
	}
	fmt.Println("listening echo", listener.Addr())
	// Go sets TCP_NODELAY on the connections that it accepts.
	options := gws.ServerOption{PermessageDeflate: gws.PermessageDeflate{Enabled: deflate}}
	fail(1, gws.NewServer(echo{}, &options).RunListener(listener).Error())
}

func listen(addr netip.AddrPort) (net.Listener, error) {
	kind := syscall.SOCK_STREAM | syscall.SOCK_CLOEXEC | syscall.SOCK_NONBLOCK
	socket, err := syscall.Socket(syscall.AF_INET, kind, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(socket), "listener")
	defer file.Close() // the listener has a duplicate
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return nil, err
	}
	to := syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	if err := syscall.Bind(socket, &to); err != nil {
		return nil, err
	}
	if err := syscall.Listen(socket, backlog); err != nil {
		return nil, err
	}
	return net.FileListener(file)
}

func fail(code int, why string) {
	fmt.Fprintln(os.Stderr, "ws-gws:", why)
	os.Exit(code)
}
