// The MCP server: assistants upload, train, watch, evaluate, deploy and chat through it.
import { defaultFolders } from './files.ts'
import { serveHttp } from './http.ts'
import { serveStdio } from './stdio.ts'

export { isNetwork } from '../lib/connections.ts'
export { type HttpServer, serveHttp } from './http.ts'
export { createMcpServer } from './server.ts'

export interface McpOptions {
  /** The service, with its version: https://tunery.example.com/v1. */
  url: string
  /** The key for stdio. Over HTTP each client sends its own, and this one is not used. */
  key?: string | undefined
  version: string
  /** Listen here instead of using standard input and output; 0 takes a free port. */
  http?: number | undefined
  /** Default: 127.0.0.1. */
  host?: string | undefined
  /** Names by which clients reach it over HTTP, besides those of this machine. */
  allowedHosts?: string[] | undefined
  /** Addresses and networks of proxies before it whose X-Forwarded-For is trusted. */
  trustedProxies?: string[] | undefined
  /** Folders whose files may be uploaded over stdio. Default: the one it is started in. */
  folders?: string[] | undefined
}

/**
 * Serves until the client is gone (stdio), or until SIGINT or SIGTERM (HTTP). Writes to standard error alone, as
 * standard output is the protocol's. Throws a TypeError where options are missing, and the system's error where it
 * cannot listen.
 */
export async function runMcp(options: McpOptions): Promise<void> {
  const { url, key, version, http, host, allowedHosts, trustedProxies, folders } = options
  const log = (line: string) => void process.stderr.write(`tunery mcp: ${line}\n`)
  if (http === undefined) {
    if (!key) throw new TypeError('Over stdio the server needs a key.')
    await serveStdio({ url, key, version, folders: folders ?? defaultFolders(), log })
    return
  }
  const server = await serveHttp({ url, version, port: http, host, allowedHosts, trustedProxies, log })
  log(`listening at ${server.url} for ${url}`)
  await new Promise<void>((resolve) => {
    process.once('SIGINT', resolve)
    process.once('SIGTERM', resolve)
  })
  await server.close()
}
