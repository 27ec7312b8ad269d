// A fake Hugging Face Hub: an HTTP server with its routes and responses that serves one checkpoint folder.
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'

export const revision = 'a'.repeat(40)
export const weights = 'model.safetensors'

/** Serves the checkpoint in `folder` as the model `id`. The fields of the result inject faults at any time. */
export async function modelHub(folder: string, id: string) {
  const files = readdirSync(folder).map((name) => ({ name, content: readFileSync(path.join(folder, name)) }))
  const hub = {
    url: '',
    /** Answers every request with this status. */
    status: undefined as number | undefined,
    /** Closes the connection after this many bytes of the weights. */
    cut: undefined as number | undefined,
    /** Sends this many bytes of the weights, then stalls with the connection open. */
    stall: undefined as number | undefined,
    /** Ignores range headers and sends the whole file. */
    ignoresRanges: false,
    /** Lists no safetensors files. */
    withoutWeights: false,
    /** Sends weights with the last byte changed. */
    corrupt: false,
    /** Start offset of each request for the weights. */
    ranges: [] as number[],
    tokens: [] as (string | undefined)[],
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
  const large = (name: string) => name.endsWith('.safetensors')
  const unwanted = [
    'modeling_custom.py',
    '../../evil.json',
    '/etc/evil.json',
    '.git/config.json',
    'pytorch_model.bin',
    'consolidated.safetensors',
  ]
  const siblings = [...files, ...unwanted.map((name) => ({ name, content: Buffer.from('{}') }))].map(
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
    const sendJson = (status: number, body: unknown): void => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    }
    if (hub.status) return sendJson(hub.status, { error: 'refused' })
    if ([`/api/models/${id}/revision/main`, `/api/models/${id}/revision/${revision}`].includes(pathname))
      return sendJson(200, {
        sha: revision,
        siblings: siblings.filter(({ rfilename }) => !hub.withoutWeights || !large(rfilename)),
      })
    const file = files.find(({ name }) => pathname === `/${id}/resolve/${revision}/${name}`)
    if (!file) return sendJson(404, { error: 'Not found' })
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
    const end = hub.stall ?? hub.cut
    if (end === undefined) return response.end(content.subarray(from))
    response.write(content.subarray(from, end), () => {
      if (hub.stall === undefined) response.destroy()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  hub.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return hub
}
