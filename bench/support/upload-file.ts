// Sends a file as a form, in pieces, so that the sender's memory does not depend on its size.
import { once } from 'node:events'
import { createReadStream, statSync } from 'node:fs'
import http from 'node:http'

/** The answer's text. Throws if it is not 201. */
export async function uploadFile(url: string, file: string, headers: Record<string, string>): Promise<string> {
  const boundary = 'bench'
  const head =
    `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n` +
    'Content-Type: application/octet-stream\r\n\r\n'
  const tail = `\r\n--${boundary}--\r\n`
  const request = http.request(url, {
    method: 'POST',
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      'content-length': head.length + statSync(file).size + tail.length,
      ...headers,
    },
  })
  request.write(head)
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 }))
    if (!request.write(chunk)) await once(request, 'drain')
  request.end(tail)
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  const text = (await response.toArray()).join('')
  if (response.statusCode !== 201) throw new Error(`${response.statusCode}: ${text}`)
  return text
}
