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
const key = TUNERY_KEY || TUNERY_API_KEY
const port = values.http === undefined ? undefined : Number(values.http)
const mistake = !url
  ? 'Set TUNERY_URL to the address of a service, such as https://tunery.example.com/v1.'
  : port === undefined && !key
    ? 'Set TUNERY_KEY (or TUNERY_API_KEY) to an API key.'
    : port !== undefined && !(Number.isInteger(port) && port >= 0 && port < 65_536)
      ? `--http takes a port, not '${values.http}'.`
      : undefined
if (mistake) {
  console.error(mistake)
  process.exit(2)
}
try {
  await runMcp({
    url: url!,
    key,
    version,
    http: port,
    host: values.host,
    allowedHosts: values['allow-host'],
    folders: values.folder,
  })
} catch (error) {
  console.error((error as Error).message)
  process.exit(1)
}
