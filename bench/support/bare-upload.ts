// The peer of the upload benchmark: only writes the body to a file and hashes it. `node bare-upload.ts FOLDER`
import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { open } from 'node:fs/promises'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'

const file = path.join(process.argv[2]!, 'bare.bin')
const server = http.createServer(async (request, response) => {
  const hash = createHash('sha256')
  const meter = new Transform({
    transform(chunk, _encoding, done) {
      hash.update(chunk)
      done(null, chunk)
    },
  })
  await pipeline(request, meter, createWriteStream(file))
  const handle = await open(file)
  await handle.sync()
  await handle.close()
  response.writeHead(201).end(hash.digest('hex'))
})
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`))
process.stdin.on('end', () => process.exit(0)).resume()
