// A relay in Node with nothing in it: what a gateway on this machine can reach at most. `node bare-relay.ts URL` passes
// each request on to URL, with the same packages under it as the service (node:http, undici), and prints its address.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Pool } from 'undici'

const pool = new Pool(process.argv[2]!, { pipelining: 1 })
const server = createServer((request, response) => {
  const chunks: Buffer[] = []
  request.on('data', (chunk) => chunks.push(chunk))
  request.on('end', async () => {
    const headers = { 'content-type': 'application/json' }
    const answer = await pool.request({ method: 'POST', path: request.url!, headers, body: Buffer.concat(chunks) })
    const body = Buffer.from(await answer.body.arrayBuffer())
    response.writeHead(answer.statusCode, { 'content-type': 'application/json', 'content-length': body.length })
    response.end(body)
  })
})
server.listen(0, '127.0.0.1')
await once(server, 'listening')
console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
process.stdin.resume().on('end', () => process.exit(0))
