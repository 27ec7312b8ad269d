// The server over standard input and output, for a client that starts it as its own process.
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { Tunery } from '../sdk/index.ts'
import { createFileReader } from './files.ts'
import { createMcpServer } from './server.ts'

interface StdioSettings {
  /** The service, with its version: https://tunery.example.com/v1. */
  url: string
  key: string
  version: string
  /** Folders whose files may be uploaded. */
  folders: string[]
  log: (line: string) => void
}

/** Serves until the client closes its end. */
export async function serveStdio({ url, key, version, folders, log }: StdioSettings): Promise<void> {
  const tunery = new Tunery({ baseUrl: url, apiKey: key, headers: { 'user-agent': `tunery-mcp/${version}` } })
  const server = createMcpServer({ tunery, key, version, readFile: createFileReader(folders), log })
  server.server.onerror = (error) => log(`protocol: ${error.message}`)
  const closed = new Promise<void>((resolve) => {
    server.server.onclose = resolve
    process.stdin.once('end', resolve)
  })
  await server.connect(new StdioServerTransport())
  await closed
  await server.close()
}
