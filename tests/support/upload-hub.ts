// A fake hub that accepts uploads, with the routes and responses of the Hugging Face Hub: a real HTTP server that keeps
// the files.
import http from 'node:http'
import type { AddressInfo } from 'node:net'

export interface UploadHub {
  url: string
  /** repository → path → content */
  repositories: Map<string, Map<string, Buffer>>
  /** Repositories that were created as public. */
  open: string[]
  close(): void
}

export async function uploadHub(token: string): Promise<UploadHub> {
  const repositories: UploadHub['repositories'] = new Map()
  const large = new Map<string, Buffer>()
  const open: string[] = []
  let url = ''
  const server = http.createServer(async (request, response) => {
    const parts: Buffer[] = []
    for await (const part of request) parts.push(part as Buffer)
    const body = Buffer.concat(parts)
    const say = (status: number, answer: unknown) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
    const target = decodeURIComponent(request.url!)
    const put = /^\/objects\/(\w+)$/.exec(target)
    if (put && request.method === 'PUT') {
      large.set(put[1]!, body)
      return response.end()
    }
    if (request.headers.authorization !== `Bearer ${token}`) return say(401, { error: 'Invalid credentials' })
    if (target === '/api/repos/create') {
      const { name, organization, private: isPrivate, visibility } = JSON.parse(String(body))
      const id = organization ? `${organization}/${name}` : name
      if (repositories.has(id)) return say(409, { error: 'You already created this model repo' })
      repositories.set(id, new Map())
      if (!isPrivate && visibility !== 'private') open.push(id)
      return say(200, { url: `${url}/${id}` })
    }
    const [, repository = '', what] =
      /^\/(?:api\/models\/)?([\w-]+\/[\w.-]+?)(?:\.git)?\/(preupload|info|commit)\//.exec(target) ?? []
    const files = repositories.get(repository)
    if (!files) return say(404, { error: 'Repository not found' })
    if (what === 'preupload') {
      const listed = JSON.parse(String(body)).files as { path: string; size: number }[]
      return say(200, {
        files: listed.map(({ path, size }) => ({ path, uploadMode: size > 10_000 ? 'lfs' : 'regular' })),
      })
    }
    if (what === 'info') {
      const objects = JSON.parse(String(body)).objects as { oid: string; size: number }[]
      return say(200, {
        transfer: 'basic',
        objects: objects.map((object) => ({
          ...object,
          actions: { upload: { href: `${url}/objects/${object.oid}` } },
        })),
      })
    }
    for (const line of String(body).trim().split('\n')) {
      const { key, value } = JSON.parse(line)
      if (key === 'file') files.set(value.path, Buffer.from(value.content, value.encoding))
      if (key === 'lfsFile') files.set(value.path, large.get(value.oid)!)
    }
    return say(200, { success: true, commitOid: 'x', commitUrl: `${url}/${repository}/commit/x`, hookOutput: '' })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url,
    repositories,
    open,
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}
