// Publishes or fetches one artifact, in a new process: node storage-worker.ts publish|fetch URL DATA_DIR KEY.
// Prints its peak memory (MB) before and after.
import pino from 'pino'
import { createArtifacts, openObjectStore } from '../../server/platform/storage/objects/index.ts'

const [what, url, dataDir, key] = process.argv.slice(2)
const artifacts = createArtifacts({
  dataDir: dataDir!,
  store: await openObjectStore(url!),
  cache_mb: 1e6,
  min_free_mb: 0,
  redirect: true,
  log: pino({ level: 'silent' }),
})
const before_mb = process.resourceUsage().maxRSS / 1000
if (what === 'publish') await artifacts.publish(key!)
else await artifacts.ensureLocal(key!)
console.log(JSON.stringify({ before_mb, peak_mb: process.resourceUsage().maxRSS / 1000 }))
artifacts.close()
