// `gws URL shared|takeover`: the client of gws, with every combination of takeover, at three windows.
package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/lxzan/gws"
)

var lengths = []int{0, 1, 63, 64, 1000, 16_384, 70_000, 200_000}

type message struct {
	kind    gws.Opcode
	payload []byte
}

// Sends each message that is received to a channel.
type handler struct {
	gws.BuiltinEventHandler
	received chan message
}

func (h *handler) OnMessage(_ *gws.Conn, m *gws.Message) {
	h.received <- message{m.Opcode, bytes.Clone(m.Bytes())}
	_ = m.Close()
}

func (h *handler) OnClose(_ *gws.Conn, _ error) { close(h.received) }

func messages() []message {
	random := rand.New(rand.NewSource(1))
	var all []message
	for _, length := range lengths {
		text := []byte(strings.Repeat(`{"id":1,"symbol":"ABC","price":1.25}`, length/36+1)[:length])
		noise := make([]byte, length)
		random.Read(noise)
		all = append(all, message{gws.OpcodeText, text}, message{gws.OpcodeText, text},
			message{gws.OpcodeBinary, text}, message{gws.OpcodeBinary, noise})
	}
	return all
}

func exchange(url, deflate string, asked gws.PermessageDeflate) (int, error) {
	h := &handler{received: make(chan message, 1)}
	option := &gws.ClientOption{Addr: url, PermessageDeflate: asked, ReadMaxPayloadSize: 1 << 24}
	socket, response, err := gws.NewClient(h, option)
	if err != nil {
		return 0, err
	}
	answer := response.Header.Get("Sec-WebSocket-Extensions")
	for name, keeps := range map[string]bool{
		"server_no_context_takeover": asked.ServerContextTakeover,
		"client_no_context_takeover": asked.ClientContextTakeover,
	} {
		if strings.Contains(answer, name) == (keeps && deflate == "takeover") {
			return 0, fmt.Errorf("%+v was answered by %q", asked, answer)
		}
	}
	go socket.ReadLoop()
	all := messages()
	for _, sent := range all {
		if err := socket.WriteMessage(sent.kind, sent.payload); err != nil {
			return 0, err
		}
		select {
		case got, isOpen := <-h.received:
			if !isOpen || got.kind != sent.kind || !bytes.Equal(got.payload, sent.payload) {
				return 0, fmt.Errorf("%+v: %d bytes did not come back", asked, len(sent.payload))
			}
		case <-time.After(10 * time.Second):
			return 0, fmt.Errorf("%+v: no answer to %d bytes", asked, len(sent.payload))
		}
	}
	return len(all), socket.WriteClose(1000, nil)
}

func run(url, deflate string) error {
	messages, combinations := 0, 0
	for _, window := range []int{9, 12, 15} {
		for flags := range 4 {
			count, err := exchange(url, deflate, gws.PermessageDeflate{
				Enabled: true, Threshold: 1,
				ServerContextTakeover: flags&1 != 0, ClientContextTakeover: flags&2 != 0,
				ServerMaxWindowBits: window, ClientMaxWindowBits: window,
			})
			if err != nil {
				return err
			}
			messages, combinations = messages+count, combinations+1
		}
	}
	fmt.Printf("%d messages, %d combinations\n", messages, combinations)
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "gws:", err)
		os.Exit(1)
	}
}
