// A real service on a free port, and Debian's Chromium on its pages.
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { after, before } from 'node:test'
import { AxeBuilder } from '@axe-core/playwright'
import { type BrowserContext, chromium, type Locator, type Page } from 'playwright-core'
import { Tunery } from '../../sdk/index.ts'
import { allowed } from '../support/allowed-time.ts'
import { until } from '../support/client.ts'
import { type DataFolder, dataFolder } from '../support/server.ts'

const browsers = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
const executablePath = browsers.find((file) => file && existsSync(file))
/** Options of a test that needs the browser: skipped, with what to do, where it is missing. */
export const browserTest = {
  skip: executablePath ? false : 'Chromium is not installed: run `node scripts/setup.mjs --with chromium` as root',
}

export interface Visit {
  page: Page
  /** What the console or the page complained of: errors, and what the content security policy refused. */
  complaints: string[]
}

export interface BrowserService {
  /** Without a path: `http://127.0.0.1:PORT`. */
  address: string
  folder: DataFolder
  /** A full API key of the owner, to make things with, and a client that has it. */
  key: string
  tunery: Tunery
  /** The sign-in link of the first start. It works once, and the service is given with the owner signed in by it. */
  link: string
  /** A new page of the owner, who is signed in, in a browser profile of its own. */
  visit(options?: VisitOptions): Promise<Visit>
  /** Kills the service, and starts it again at the same address. */
  restart(): Promise<void>
  stop(): Promise<void>
}

export interface VisitOptions {
  scheme?: 'light' | 'dark'
  size?: { width: number; height: number }
  /** False: nobody is signed in. */
  signedIn?: boolean
  /** Instead of the service's own: the same under another name. */
  address?: string
  reducedMotion?: boolean
}

export const desktop = { width: 1280, height: 800 }
export const phone = { width: 360, height: 740 }

/** For what a training does first: it has a low priority beside all that runs on a busy machine. */
export const patiently = {
  get timeout() {
    return allowed(90_000)
  },
}

/** Longest wait for anything on a page; longer on a busy machine. */
const patience_ms = 20_000

/** A name under which the browser finds this machine, and trusts it no more than any other over http. */
export const otherMachine = 'another.test'

export interface BrowserOnly {
  /** A new page in a browser profile of its own, with these cookies. */
  visit(options?: VisitOptions, storageState?: StorageState): Promise<Visit>
  stop(): Promise<void>
}
type StorageState = Awaited<ReturnType<BrowserContext['storageState']>>

/** A browser for pages at the address that is given. */
export async function startBrowser(addressOf: () => string): Promise<BrowserOnly> {
  const browser = await chromium.launch({
    executablePath: executablePath!,
    args: ['--no-sandbox', '--disable-gpu', `--host-resolver-rules=MAP ${otherMachine} 127.0.0.1`],
  })
  return {
    async visit({ scheme = 'light', size = desktop, reducedMotion = false, address } = {}, storageState) {
      const context = await browser.newContext({
        baseURL: address ?? addressOf(),
        colorScheme: scheme,
        viewport: size,
        locale: 'en-GB',
        timezoneId: 'UTC',
        reducedMotion: reducedMotion ? 'reduce' : 'no-preference',
        hasTouch: size.width < 600,
        ...(storageState && { storageState }),
      })
      context.setDefaultTimeout(allowed(patience_ms))
      const page = await context.newPage()
      const complaints: string[] = []
      page.on('console', (message) => {
        if (message.type() === 'error' || message.type() === 'warning')
          complaints.push(`${message.text()} (${message.location().url})`)
      })
      page.on('pageerror', (error) => complaints.push(String(error)))
      return { page, complaints }
    },
    stop: () => browser.close(),
  }
}

/**
 * Starts a service and a browser, and signs the owner in, unless the link of the first start is to be used by the test.
 * `name` is part of the data folder's name.
 */
export async function startBrowserService(
  name: string,
  settings: Record<string, string> = {},
  { signIn = true }: { signIn?: boolean } = {},
): Promise<BrowserService> {
  const folder = dataFolder(name, settings)
  let server = await folder.start()
  const key = folder.key()
  const linkFile = path.join(folder.dataDir, 'sign-in-link.txt')
  await until('the sign-in link', () => existsSync(linkFile))
  const link = inNumbers(readFileSync(linkFile, 'utf8').trim())
  const addressOf = () => server.url.replace(/\/v1$/, '')
  const browser = await startBrowser(addressOf)
  let owner: StorageState | undefined
  const stop = async () => {
    await browser.stop()
    folder.remove()
  }
  if (signIn)
    try {
      const { page } = await browser.visit()
      await page.goto(link)
      await page.getByRole('heading', { level: 1, name: 'Welcome to Tunery' }).waitFor()
      owner = await page.context().storageState()
      await page.context().close()
    } catch (error) {
      // The test has nothing to stop yet.
      await stop()
      throw error
    }
  return {
    get address() {
      return addressOf()
    },
    folder,
    key,
    get tunery() {
      return new Tunery({ baseUrl: server.url, apiKey: key })
    },
    link,
    visit: (options = {}) => browser.visit(options, options.signedIn === false ? undefined : owner),
    async restart() {
      // At the same address: pages that are open wait for it there.
      folder.env.TUNERY_PORT = new URL(server.url).port
      await server.end('SIGKILL')
      server = await folder.start()
    },
    stop,
  }
}

/** Starts the service of a test file before its tests, and stops it after them. */
export function browserService(...[name, settings, options]: Parameters<typeof startBrowserService>) {
  let started: BrowserService | undefined
  before(async () => {
    if (!browserTest.skip) started = await startBrowserService(name, settings, options)
  })
  after(() => started?.stop())
  return { service: later(() => started!), tunery: later(() => started!.tunery) }
}

/** An object that is there only once its properties are read. */
const later = <T extends object>(get: () => T): T =>
  new Proxy({} as T, {
    get(_, name) {
      const value = Reflect.get(get(), name)
      return typeof value === 'function' ? value.bind(get()) : value
    },
  })

export const heading = (page: Page, name: string | RegExp) => page.getByRole('heading', { level: 1, name }).waitFor()

export async function open(page: Page, address: string): Promise<void> {
  await page.goto(address)
  await settled(page)
}

/** A sign-in link for the tests' pages, which are at the address in numbers: a session belongs to one name. */
export const inNumbers = (link: string): string => link.replace('//localhost', '//127.0.0.1')

/** What axe finds serious or critical on a page, each with the elements. `only`: of these rules. */
export async function problemsOf(page: Page, { only }: { only?: string[] } = {}): Promise<string[]> {
  // Without "legacy" it opens a page for each report, for frames of other origins, which no page of ours has.
  const axe = new AxeBuilder({ page }).setLegacyMode(true).options({ resultTypes: ['violations'] })
  if (only) axe.withRules(only)
  const { violations } = await axe.analyze()
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 150)).join(' ')}`)
}

/**
 * Waits until a page shows what it has loaded. Live pages keep a stream open, so that their network is never idle.
 * `skeletons`: some are part of the page.
 */
export async function settled(page: Page, { skeletons = false } = {}): Promise<void> {
  await page.locator('h1').first().waitFor()
  if (!skeletons) await page.waitForFunction(() => document.querySelectorAll('[data-skeleton]').length === 0)
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))))
}

/** Chooses from a list, and waits until it is gone: while it fades, its options are there beside those of the next. */
export async function choose(within: Page | Locator, label: string | RegExp, option: string | RegExp): Promise<void> {
  const combobox = within.getByRole('combobox', { name: label })
  await combobox.click()
  const list = combobox.page().getByRole('listbox')
  await list.getByRole('option', { name: option }).first().click()
  await list.waitFor({ state: 'detached' })
}
