import net from 'node:net'

/** A plain TCP connection to a service, with the text received so far. */
export function connect(address: string) {
  const socket = net.connect(Number(new URL(address).port), '127.0.0.1')
  const connection = { socket, text: '', closed: false }
  socket.setEncoding('utf8').on('data', (text) => {
    connection.text += text
  })
  socket
    .on('error', () => {})
    .on('close', () => {
      connection.closed = true
    })
  return connection
}
