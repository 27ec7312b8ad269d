// Pictures of every page: light, dark and on a phone. `npm run screenshots -- FOLDER [PATH…]`
import { mkdirSync } from 'node:fs'
import path from 'node:path'
import { furnish } from './furnish.ts'
import { desktop, phone, settled, startBrowserService } from './support.ts'

const [folder = '.local/screenshots', ...only] = process.argv.slice(2)
const everyPage: Record<string, string> = {
  home: '/',
  datasets: '/datasets',
  jobs: '/jobs',
  'new-job': '/jobs/new',
  playground: '/playground',
  evaluations: '/evaluations',
  models: '/models',
  deployments: '/deployments',
  exports: '/exports',
  settings: '/settings/profile',
  operator: '/operator',
  welcome: '/welcome',
  invitation: '/invitation#nothing',
  'not-found': '/nowhere/at/all',
}
const pages =
  only.length > 0
    ? Object.fromEntries(only.map((each) => [each.replace(/^\//, '').replaceAll('/', '-') || 'home', each]))
    : everyPage
const kinds = [
  { name: 'light', scheme: 'light', size: desktop },
  { name: 'dark', scheme: 'dark', size: desktop },
  { name: 'phone', scheme: 'light', size: phone },
] as const

mkdirSync(folder, { recursive: true })
const service = await startBrowserService('screenshots')
try {
  await furnish(service)
  for (const { name: kind, scheme, size } of kinds) {
    const { page, complaints } = await service.visit({ scheme, size })
    for (const [name, address] of Object.entries(pages)) {
      await page.goto(address)
      await settled(page)
      await page.screenshot({ path: path.join(folder, `${name}-${kind}.png`), fullPage: kind === 'phone' })
    }
    if (complaints.length > 0) console.log(complaints.join('\n'))
    if (only.length > 0) continue
    const visitor = await service.visit({ scheme, size, signedIn: false })
    await visitor.page.goto('/sign-in')
    await settled(visitor.page)
    await visitor.page.screenshot({ path: path.join(folder, `sign-in-${kind}.png`) })
  }
} finally {
  await service.stop()
}
