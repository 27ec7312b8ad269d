// A hub that base models are downloaded from, with the addresses and answers of the Hugging Face Hub: a real HTTP
// server on a folder.
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'

export const revision = 'a'.repeat(40)
export const weights = 'model.safetensors'

/** Serves the checkpoint in `folder` as the model `id`; what it does wrong can be changed at any time. */
export async function modelHub(folder: string, id: string) {
  const files = readdirSync(folder).map((name) => ({ name, content: readFileSync(path.join(folder, name)) }))
  const hub = {
    url: '',
    /** Answers everything with this status. */
    status: undefined as number | undefined,
    /** Ends the connection after this many bytes of the weights. */
    cut: undefined as number | undefined,
    /** Sends this many bytes of the weights and then nothing more, with the connection open. */
    stall: undefined as number | undefined,
    /** Sends the whole file, whatever range was asked for. */
    ignoresRanges: false,
    /** Lists no safetensors. */
    withoutWeights: false,
    /** Sends weights with a byte changed. */
    corrupt: false,
    /** Where each request for the weights began. */
    ranges: [] as number[],
    tokens: [] as (string | undefined)[],
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
  const large = (name: string) => name.endsWith('.safetensors')
  const never = [
    'modeling_custom.py',
    '../../evil.json',
    '/etc/evil.json',
    '.git/config.json',
    'pytorch_model.bin',
    'consolidated.safetensors',
  ]
  const siblings = [...files, ...never.map((name) => ({ name, content: Buffer.from('{}') }))].map(
    ({ name, content }) => ({
      rfilename: name,
      size: content.length,
      blobId: createHash('sha1').update(`blob ${content.length}\0`).update(content).digest('hex'),
      ...(large(name) && { lfs: { sha256: createHash('sha256').update(content).digest('hex'), size: content.length } }),
    }),
  )
  const server = http.createServer((request, response) => {
    const { pathname } = new URL(request.url!, 'http://hub')
    hub.tokens.push(request.headers.authorization)
    const say = (status: number, body: unknown) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    if (hub.status) return say(hub.status, { error: 'refused' })
    if ([`/api/models/${id}/revision/main`, `/api/models/${id}/revision/${revision}`].includes(pathname))
      return say(200, {
        sha: revision,
        siblings: siblings.filter(({ rfilename }) => !hub.withoutWeights || !large(rfilename)),
      })
    const file = files.find(({ name }) => pathname === `/${id}/resolve/${revision}/${name}`)
    if (!file) return say(404, { error: 'Not found' })
    const content = Buffer.from(file.content)
    const from = hub.ignoresRanges ? 0 : Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0)
    const headers = { 'content-length': content.length - from, etag: '"x"' }
    response.writeHead(from ? 206 : 200, {
      ...headers,
      ...(from && { 'content-range': `bytes ${from}-${content.length - 1}/${content.length}` }),
    })
    if (file.name !== weights) return response.end(content)
    hub.ranges.push(from)
    if (hub.corrupt) content[content.length - 1]! ^= 1
    const most = hub.stall ?? hub.cut
    if (most === undefined) return response.end(content.subarray(from))
    response.write(content.subarray(from, most), () => {
      if (hub.stall === undefined) response.destroy()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  hub.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return hub
}
