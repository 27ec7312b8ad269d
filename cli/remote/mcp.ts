// `mcp`: the MCP server for assistants.
import { UsageError } from '../support/errors.ts'
import { invocation } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { connect, localUrl, normalizeUrl } from '../support/service.ts'

interface McpOptions extends GlobalOptions {
  http?: number
  host?: string
  allowHost?: string[]
  trustedProxy?: string[]
  folder?: string[]
}

export function addMcpCommand(program: Program): void {
  runs(
    program
      .command('mcp')
      .description('serve assistants over the Model Context Protocol: stdio, or HTTP')
      .option(
        '--http <port>',
        'listen at this port instead; each client sends its own key',
        wholeNumber('--http', 0, 65_535),
      )
      .option('--host <address>', 'with --http; default 127.0.0.1')
      .option('--allow-host <names...>', 'with --http: names by which clients reach it, such as those of a proxy')
      .option(
        '--trusted-proxy <networks...>',
        'with --http: addresses and networks of proxies whose X-Forwarded-For names the client',
      )
      .option('--folder <folders...>', 'over stdio: folders whose files may be uploaded; default: the current one'),
    serveMcp,
  )
}

async function serveMcp(options: McpOptions): Promise<void> {
  // Loaded when it is needed: the protocol's library is large.
  const { isNetwork, runMcp } = await import('../../mcp/index.ts')
  const { http, host, allowHost: allowedHosts, trustedProxy: trustedProxies, folder: folders } = options
  const wrong = trustedProxies?.find((proxy) => !isNetwork(proxy))
  if (wrong !== undefined)
    throw new UsageError(`--trusted-proxy: '${wrong}' is neither an address nor a network such as 10.0.0.0/8.`)
  const url = options.url ?? process.env.TUNERY_URL
  const service = http === undefined ? connect(options) : { url: url ? normalizeUrl(url) : localUrl(), key: undefined }
  const { version } = invocation()
  await runMcp({ url: service.url, key: service.key, version, http, host, allowedHosts, trustedProxies, folders })
}
