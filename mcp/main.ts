// The MCP server as a program of its own, configured by the environment: TUNERY_URL, TUNERY_KEY or TUNERY_API_KEY.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { root } from '../lib/root.ts'
import { runMcp } from './index.ts'

const { values } = parseArgs({
  options: {
    http: { type: 'string' },
    host: { type: 'string' },
    'allow-host': { type: 'string', multiple: true },
    folder: { type: 'string', multiple: true },
  },
})
const { TUNERY_URL, TUNERY_KEY, TUNERY_API_KEY, TUNERY_DATA_DIR } = process.env
const { version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as { version: string }

/** Of the service that runs on the data folder. */
function localUrl(): string | undefined {
  try {
    const file = path.join(TUNERY_DATA_DIR || path.join(root, 'data'), 'server.json')
    return (JSON.parse(readFileSync(file, 'utf8')) as { url: string }).url
  } catch {
    return undefined
  }
}

const url = TUNERY_URL || localUrl()
if (!url) {
  console.error('Set TUNERY_URL to the address of a service, such as https://tunery.example.com/v1.')
  process.exit(2)
}
await runMcp({
  url,
  key: TUNERY_KEY || TUNERY_API_KEY,
  version,
  http: values.http === undefined ? undefined : Number(values.http),
  host: values.host,
  allowedHosts: values['allow-host'],
  folders: values.folder,
})
