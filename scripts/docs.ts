// `npm run docs`: generates docs/reference and the client library's types from the schemas that the service validates
// with, the list of metrics and Grafana's dashboard, and the trainer's and our dashboard's
// hyperparameters from their table, the values of the Helm charts, and docs/performance.md and docs/capacity.md from
// recorded results.
// `--check` writes nothing and fails if a file is out of date.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { dashboardFile, dashboardText } from './docs/dashboard.ts'
import { chartFiles } from './docs/helm.ts'
import { noteOf, referencePages } from './docs/pages.ts'
import { performanceFile, performancePage, recordFiles, topicPages } from './docs/performance.ts'
import { pythonModule, pythonModuleFile } from './docs/python-module.ts'
import { sdkFiles } from './docs/sdk.ts'
import { webFiles } from './docs/web.ts'

const root = path.resolve(import.meta.dirname, '..')
const check = process.argv.includes('--check')
const pages = Object.entries(referencePages()).map(([name, text]) => [`docs/reference/${name}`, text] as const)
const modules = Object.entries({
  ...(await sdkFiles()),
  ...webFiles(),
  ...chartFiles(),
  ...recordFiles(root),
  ...topicPages(root, noteOf),
})
const stale: string[] = []
const others = [
  [pythonModuleFile, pythonModule()],
  [dashboardFile, dashboardText()],
  [performanceFile, performancePage(root, noteOf('the records in docs/performance'))],
] as const
for (const [name, text] of [...pages, ...modules, ...others]) {
  const file = path.join(root, name)
  if (existsSync(file) && readFileSync(file, 'utf8') === text) continue
  if (check) stale.push(name)
  else {
    mkdirSync(path.dirname(file), { recursive: true })
    writeFileSync(file, text)
    console.log(`wrote ${name}`)
  }
}
if (stale.length > 0) {
  console.error(`Out of date: ${stale.join(', ')}. Run 'npm run docs'.`)
  process.exit(1)
}
