// The search of the dashboard: its pages, and everything of the account that has a name or an id.
import { useQuery } from '@tanstack/react-query'
import {
  BookOpen,
  Boxes,
  Braces,
  Database,
  FlaskConical,
  PackageOpen,
  Plus,
  Rocket,
  Settings,
  SlidersHorizontal,
} from 'lucide-react'
import { type ReactNode, useEffect, useState } from 'react'
import type { Scope } from '../../contract/scopes.ts'
import { tunery } from '../lib/api.ts'
import { useSessionQuery } from '../lib/session.ts'
import { SearchDialog, type SearchResult } from '../ui/search-dialog.tsx'
import { navigation } from './navigation.ts'

export default function Search(props: { open: boolean; onOpenChange: (open: boolean) => void }) {
  return <SearchDialog {...props} label="Search" placeholder="Search or jump to…" useResults={useResults} />
}

interface Place {
  href: string
  icon: ReactNode
  title: string
  scope?: Scope
  /** Other words for it. */
  words?: string
}

const sections: [string, string, Scope?][] = [
  ['profile', 'Profile'],
  ['keys', 'API keys', 'keys:read'],
  ['members', 'Members', 'members:read'],
  ['webhooks', 'Webhooks', 'webhooks:read'],
  ['usage', 'Usage', 'usage:read'],
  ['audit', 'Audit log', 'audit:read'],
  ['sessions', 'Sessions'],
]

const places: readonly Place[] = [
  ...navigation
    .flat()
    .map(({ to, label, icon: Icon, scope }) => ({ href: to, icon: <Icon />, title: label, ...(scope && { scope }) })),
  { href: '/jobs/new', icon: <Plus />, title: 'New job', scope: 'tuning:write', words: 'train fine-tune' },
  ...sections.map(([section, title, scope]) => ({
    href: `/settings/${section}`,
    icon: <Settings />,
    title,
    words: 'settings',
    ...(scope && { scope }),
  })),
  { href: '/docs/overview', icon: <BookOpen />, title: 'Docs', words: 'help guides' },
  { href: '/docs/api', icon: <Braces />, title: 'API reference', words: 'docs' },
]

/** The pages of things, by what their ids begin with. */
const pagesOfIds: readonly [prefix: string, kind: string, page: string, icon: ReactNode][] = [
  ['ds_', 'Dataset', '/datasets/', <Database key="icon" />],
  ['job_', 'Job', '/jobs/', <SlidersHorizontal key="icon" />],
  ['mdl_', 'Model', '/models/', <Boxes key="icon" />],
  ['eval_', 'Evaluation', '/evaluations/', <FlaskConical key="icon" />],
  ['exp_', 'Export', '/exports?open=', <PackageOpen key="icon" />],
]

const typing_ms = 150
const most = 5

function useResults(text: string): { results: SearchResult[]; said: string } {
  const scopes = useSessionQuery().data?.scopes ?? []
  const may = (scope: Scope | undefined) => !scope || scopes.includes(scope)
  // Asks once the typing pauses.
  const [asked, setAsked] = useState('')
  useEffect(() => {
    const timer = setTimeout(() => setAsked(text), typing_ms)
    return () => clearTimeout(timer)
  }, [text])
  const things = useQuery({
    queryKey: ['search', asked, scopes],
    queryFn: ({ signal }) => findThings(asked, may, signal),
    enabled: asked !== '',
  })
  const words = text.toLowerCase().split(/\s+/)
  const found = places.filter(
    ({ title, scope, words: others = '' }) =>
      may(scope) && words.every((word) => `${title} ${others}`.toLowerCase().includes(word)),
  )
  return {
    results: [
      ...found.map(({ href, icon, title }) => ({ href, icon, title, note: 'Page' })),
      ...(text === '' ? [] : (things.data ?? [])),
    ],
    said: things.isError
      ? things.error.message
      : asked === text && !things.isFetching
        ? `Nothing is called “${text.slice(0, 100)}”.`
        : 'Searching…',
  }
}

/** By name, a few of each kind; an id leads to its page. */
async function findThings(text: string, may: (scope: Scope) => boolean, signal: AbortSignal): Promise<SearchResult[]> {
  const name = text.slice(0, 200)
  const query = { name, limit: most }
  const fits = (each: string) => each.toLowerCase().includes(name.toLowerCase())
  /** One kind that fails leaves the others. */
  const listed = async <T,>(
    scope: Scope,
    list: () => PromiseLike<{ items: T[] }>,
    resultOf: (item: T) => SearchResult,
  ): Promise<SearchResult[]> =>
    may(scope)
      ? list().then(
          ({ items }) => items.map(resultOf),
          () => [],
        )
      : []
  const byId = pagesOfIds.find(([prefix]) => text.startsWith(prefix))
  const of = (prefix: string, id: string, title: string): SearchResult => {
    const [, kind, page, icon] = pagesOfIds.find(([each]) => each === prefix)!
    return { href: page + id, icon, title, note: kind }
  }
  const found = await Promise.all([
    listed(
      'datasets:read',
      () => tunery.datasets.list(query, { signal }),
      (each) => of('ds_', each.id, each.name),
    ),
    listed(
      'tuning:read',
      () => tunery.jobs.list(query, { signal }),
      (each) => of('job_', each.id, each.name),
    ),
    listed(
      'tuning:read',
      () => tunery.models.list(query, { signal }),
      (each) => of('mdl_', each.id, each.name),
    ),
    listed(
      'deployments:read',
      () => tunery.deployments.list(query, { signal }),
      ({ name: each }) => ({
        href: `/deployments/${encodeURIComponent(each)}`,
        icon: <Rocket />,
        title: each,
        note: 'Deployment',
      }),
    ),
    listed(
      'tuning:read',
      // Their list has no filter by name.
      async () => {
        const { items } = await tunery.evaluations.list({ limit: 100 }, { signal })
        return { items: items.filter((each) => fits(each.name)).slice(0, most) }
      },
      (each) => of('eval_', each.id, each.name),
    ),
    listed(
      'hub:read',
      async () => {
        const { models } = await tunery.hub.list({}, { signal })
        return { items: models.filter(({ id, name: each }) => fits(id) || fits(each)).slice(0, most) }
      },
      ({ id }) => ({ href: `/models/base/${id}`, icon: <Boxes />, title: id, note: 'Base model' }),
    ),
  ])
  return [...(byId ? [of(byId[0], text, text)] : []), ...found.flat()]
}
