// Serves the dashboard's files. Every address that no other route has, and that a browser opens as a page, gets the
// page: it reads its address itself.
import { existsSync } from 'node:fs'
import path from 'node:path'
import fastifyStatic from '@fastify/static'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

/** What the page may load: its own files alone, no inline script or style. */
const pagePolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "connect-src 'self'",
  "font-src 'self'",
  "manifest-src 'self'",
  "form-action 'self'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join('; ')

const hidden = { schema: { hide: true }, logLevel: 'warn' } as const
/** Assets have a hash in their name. */
const year_s = 31_536_000
/** Files beside the page whose names have no hash. */
const unhashed = new Set(['theme.js', 'favicon.svg'])
/** Addresses of the API and of files keep their errors, also towards browsers. */
const isApi = (pathname: string) => /^\/(v1|api|health|metrics|assets)(\/|$)/.test(pathname)

export function webRoutes(app: FastifyInstance, folder: string): void {
  // biome-ignore lint/nursery/noMisusedPromises: Fastify waits for an asynchronous plugin
  app.register(async (web) => {
    await web.register(fastifyStatic, {
      root: folder,
      serve: false,
      preCompressed: true,
      // Headers are set below; a time of change says nothing about a build.
      cacheControl: false,
      lastModified: false,
      dotfiles: 'ignore',
      suppressWarning: true,
    })

    const sendPage = (reply: FastifyReply) => {
      reply.header('content-security-policy', pagePolicy).header('cache-control', 'no-cache')
      if (existsSync(path.join(folder, 'index.html'))) return reply.sendFile('index.html')
      return reply.status(503).type('text/html; charset=utf-8').send(notBuilt)
    }

    web.get('/', hidden, (_request, reply) => sendPage(reply))
    // Also for programs that name no type: it says that there are docs.
    web.get('/docs', hidden, (_request, reply) => sendPage(reply))
    web.get('/assets/*', hidden, (request, reply) => {
      const name = (request.params as { '*': string })['*']
      // Hashed names only: also what is asked for with dots and slashes ends here, `..` among it.
      if (!/^\w[\w.-]*$/.test(name) || !existsSync(path.join(folder, 'assets', name))) return reply.callNotFound()
      return reply.header('cache-control', `public, max-age=${year_s}, immutable`).sendFile(`assets/${name}`)
    })
    web.get('/*', hidden, (request, reply) => {
      const pathname = request.url.split('?')[0]!
      const name = pathname.slice(1)
      if (unhashed.has(name) && existsSync(path.join(folder, name)))
        return reply.header('cache-control', 'no-cache').sendFile(name)
      return isPageRequest(request, pathname) ? sendPage(reply) : reply.callNotFound()
    })
  })
}

const isPageRequest = ({ headers }: FastifyRequest, pathname: string) =>
  !isApi(pathname) && /\btext\/html\b/.test(headers.accept ?? '')

const notBuilt = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tunery</title></head>
<body><h1>The dashboard is not built</h1>
<p>The service works, but its pages are missing. Run <code>npm run setup</code> in Tunery's folder and load this page
again. The API is described at <a href="/v1/openapi.json">/v1/openapi.json</a>, and its documentation is in
the folder <code>docs</code>.</p></body></html>
`
