"""A load balancer in a few lines: whole HTTP/1.1 requests with a Content-Length, round robin, and another server only
where the first did not get the request (no connection, or 503)."""

import asyncio


class Broken(Exception):
    """The server closed the connection before its answer was whole."""


async def read_message(reader):
    """The head and the body of a request or an answer; `None` at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise Broken from end
        return None
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    try:
        return head, await reader.readexactly(length)
    except asyncio.IncompleteReadError as end:
        raise Broken from end


class Balancer:
    def __init__(self, ports):
        self.ports, self.turn = list(ports), 0
        self.in_flight = {port: 0 for port in ports}
        self.lost = 0

    async def start(self):
        self.server = await asyncio.start_server(self.client, "127.0.0.1", 0, backlog=1024)
        return self.server.sockets[0].getsockname()[1]

    async def client(self, reader, writer):
        try:
            while (message := await read_message(reader)) is not None:
                writer.write(await self.forward(*message))
                await writer.drain()
        except (OSError, Broken):
            pass
        finally:
            writer.close()

    async def forward(self, head, body):
        self.turn += 1
        first = self.turn % len(self.ports)
        for port in self.ports[first:] + self.ports[:first]:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self.in_flight[port] += 1
            try:
                writer.write(head + body)
                await writer.drain()
                answer = await read_message(reader)
                if answer is None:
                    raise Broken
                if answer[0].split(b" ", 2)[1] == b"503":
                    continue
                return answer[0] + answer[1]
            except (OSError, Broken):
                self.lost += 1
                return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
            finally:
                self.in_flight[port] -= 1
                writer.close()
        return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
