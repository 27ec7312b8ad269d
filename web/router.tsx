// Every address of the dashboard. A page is the default export of pages/NAME/index.tsx, loaded when it is opened.
import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from '@tanstack/react-router'
import { NotFound } from './shell/not-found.tsx'
import { PageError } from './shell/page-error.tsx'
import { Shell } from './shell/shell.tsx'
import { SkeletonLines } from './ui/feedback.tsx'

const root = createRootRoute({ component: Outlet })

type Texts<Name extends string> = { [name in Name]?: string | undefined }

/** A text of the address's query, where it is one. */
const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)
/** A whole number of the address's query, from 1, where it is one. */
const number = (value: unknown): number | undefined =>
  typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : undefined
/** What was typed into a search. The router reads `?q=5` as a number. */
const typed = (value: unknown): string | undefined =>
  text(typeof value === 'number' || typeof value === 'boolean' ? String(value) : value) || undefined

// Pages without the shell: their reader may not be signed in.
const signIn = createRoute({
  getParentRoute: () => root,
  path: '/sign-in',
  // `next`: where to go afterwards. `error`: a code that a provider's sign-in ended with.
  validateSearch: (search): Texts<'next' | 'error'> => ({ next: text(search.next), error: text(search.error) }),
  component: lazyRouteComponent(() => import('./pages/sign-in/index.tsx')),
})
const invitation = createRoute({
  getParentRoute: () => root,
  path: '/invitation',
  component: lazyRouteComponent(() => import('./pages/invitation/index.tsx')),
})
const chooseAccount = createRoute({
  getParentRoute: () => root,
  path: '/choose-account',
  component: lazyRouteComponent(() => import('./pages/choose-account/index.tsx')),
})
const welcome = createRoute({
  getParentRoute: () => root,
  path: '/welcome',
  component: lazyRouteComponent(() => import('./pages/welcome/index.tsx')),
})
const share = createRoute({
  getParentRoute: () => root,
  path: '/share',
  component: lazyRouteComponent(() => import('./pages/share/index.tsx')),
})

// The docs: their own frame, for everyone.
const docs = createRoute({
  getParentRoute: () => root,
  path: '/docs',
  component: lazyRouteComponent(() => import('./pages/docs/index.tsx')),
})
/** Begins with the overview. Links to an operation, `/docs#createJob`, are of the API reference. */
const docsIndex = createRoute({
  getParentRoute: () => docs,
  path: '/',
  beforeLoad: ({ location: { hash } }) => {
    if (hash) throw redirect({ to: '/docs/api', hash, replace: true })
    throw redirect({ to: '/docs/$', params: { _splat: 'overview' }, replace: true })
  },
})
const apiReference = createRoute({
  getParentRoute: () => docs,
  path: 'api',
  component: lazyRouteComponent(() => import('./pages/api-reference/index.tsx')),
})
const docsPage = createRoute({
  getParentRoute: () => docs,
  path: '$',
  component: lazyRouteComponent(() => import('./pages/docs-page/index.tsx')),
})

const shell = createRoute({ getParentRoute: () => root, id: 'shell', component: Shell })
const home = createRoute({
  getParentRoute: () => shell,
  path: '/',
  component: lazyRouteComponent(() => import('./pages/home/index.tsx')),
})
const datasets = createRoute({
  getParentRoute: () => shell,
  path: '/datasets',
  // `q`: a part of the names to show.
  validateSearch: (search): Texts<'q'> => ({ q: typed(search.q) }),
  component: lazyRouteComponent(() => import('./pages/datasets/index.tsx')),
})
const dataset = createRoute({
  getParentRoute: () => shell,
  path: '/datasets/$datasetId',
  // `model` and `length`: the base whose tokens are counted, and where rows are cut. `row`: the one to look at.
  validateSearch: (search): Texts<'tab' | 'model'> & { length?: number | undefined; row?: number | undefined } => ({
    tab: text(search.tab),
    model: text(search.model),
    length: number(search.length),
    row: number(search.row),
  }),
  component: lazyRouteComponent(() => import('./pages/dataset/index.tsx')),
})
const jobs = createRoute({
  getParentRoute: () => shell,
  path: '/jobs',
  // `q`: a part of the names to show. `sort`: `oldest` or `name`; else the newest are first.
  validateSearch: (search): Texts<'status' | 'q' | 'sort' | 'metadata'> => ({
    status: text(search.status),
    metadata: typed(search.metadata),
    q: typed(search.q),
    sort: text(search.sort),
  }),
  component: lazyRouteComponent(() => import('./pages/jobs/index.tsx')),
})
const newJob = createRoute({
  getParentRoute: () => shell,
  path: '/jobs/new',
  // What is chosen already; `clone`: the job whose settings to start with.
  validateSearch: (search): Texts<'dataset' | 'model' | 'clone'> => ({
    dataset: text(search.dataset),
    model: text(search.model),
    clone: text(search.clone),
  }),
  component: lazyRouteComponent(() => import('./pages/new-job/index.tsx')),
})
const job = createRoute({
  getParentRoute: () => shell,
  path: '/jobs/$jobId',
  // `with`: ids of jobs to compare with, with commas between. `step`, `split`: of the rollouts.
  validateSearch: (search): Texts<'tab' | 'with' | 'split'> & { step?: number | undefined } => ({
    tab: text(search.tab),
    with: text(search.with),
    // Held-out prompts are answered before the first step, too.
    step: search.step === 0 ? 0 : number(search.step),
    split: text(search.split),
  }),
  component: lazyRouteComponent(() => import('./pages/job/index.tsx')),
})
const playground = createRoute({
  getParentRoute: () => shell,
  path: '/playground',
  // `models`: names of the columns' models, with commas between. `rows`: the rows to ask, of a dataset, or those that a
  // job held out.
  validateSearch: (search): Texts<'models' | 'rows'> => ({ models: text(search.models), rows: text(search.rows) }),
  component: lazyRouteComponent(() => import('./pages/playground/index.tsx')),
})
const evaluations = createRoute({
  getParentRoute: () => shell,
  path: '/evaluations',
  // `model`: opens a new evaluation of it, beside `baseline`.
  validateSearch: (search): Texts<'model' | 'baseline'> => ({
    model: text(search.model),
    baseline: text(search.baseline),
  }),
  component: lazyRouteComponent(() => import('./pages/evaluations/index.tsx')),
})
const evaluation = createRoute({
  getParentRoute: () => shell,
  path: '/evaluations/$evaluationId',
  validateSearch: (search): Texts<'tab'> => ({ tab: text(search.tab) }),
  component: lazyRouteComponent(() => import('./pages/evaluation/index.tsx')),
})
const deployments = createRoute({
  getParentRoute: () => shell,
  path: '/deployments',
  component: lazyRouteComponent(() => import('./pages/deployments/index.tsx')),
})
const deployment = createRoute({
  getParentRoute: () => shell,
  path: '/deployments/$name',
  validateSearch: (search): Texts<'tab'> => ({ tab: text(search.tab) }),
  component: lazyRouteComponent(() => import('./pages/deployment/index.tsx')),
})
const models = createRoute({
  getParentRoute: () => shell,
  path: '/models',
  // `q`: a part of a base's name. `task`, `size`, `fits`: bases for it, of it, and that this machine has room for.
  validateSearch: (search): Texts<'q' | 'task' | 'size' | 'fits'> => ({
    q: typed(search.q),
    task: text(search.task),
    size: text(search.size),
    fits: text(search.fits),
  }),
  component: lazyRouteComponent(() => import('./pages/models/index.tsx')),
})
const baseModel = createRoute({
  getParentRoute: () => shell,
  path: '/models/base/$',
  component: lazyRouteComponent(() => import('./pages/base-model/index.tsx')),
})
const model = createRoute({
  getParentRoute: () => shell,
  path: '/models/$modelId',
  validateSearch: (search): Texts<'tab'> => ({ tab: text(search.tab) }),
  component: lazyRouteComponent(() => import('./pages/model/index.tsx')),
})
const exports = createRoute({
  getParentRoute: () => shell,
  path: '/exports',
  // `model`: opens a new export of it. `open`: shows this one.
  validateSearch: (search): Texts<'model' | 'open'> => ({ model: text(search.model), open: text(search.open) }),
  component: lazyRouteComponent(() => import('./pages/exports/index.tsx')),
})
const settings = createRoute({
  getParentRoute: () => shell,
  path: '/settings',
  beforeLoad: ({ location }) => {
    if (/^\/settings\/?$/.test(location.pathname))
      throw redirect({ to: '/settings/$section', params: { section: 'profile' } })
  },
})
const settingsSection = createRoute({
  getParentRoute: () => settings,
  path: '$section',
  component: lazyRouteComponent(() => import('./pages/settings/index.tsx')),
})
const operator = createRoute({
  getParentRoute: () => shell,
  path: '/operator',
  validateSearch: (search): Texts<'tab'> => ({ tab: text(search.tab) }),
  component: lazyRouteComponent(() => import('./pages/operator/index.tsx')),
})
const lost = createRoute({ getParentRoute: () => shell, path: '$', component: NotFound })

const routeTree = root.addChildren([
  signIn,
  invitation,
  chooseAccount,
  welcome,
  share,
  docs.addChildren([docsIndex, apiReference, docsPage]),
  shell.addChildren([
    home,
    datasets,
    dataset,
    jobs,
    newJob,
    job,
    playground,
    evaluations,
    evaluation,
    deployments,
    deployment,
    models,
    baseModel,
    model,
    exports,
    settings.addChildren([settingsSection]),
    operator,
    lost,
  ]),
])

export const router = createRouter({
  routeTree,
  defaultErrorComponent: PageError,
  defaultNotFoundComponent: NotFound,
  defaultPendingComponent: () => (
    <div className="mx-auto max-w-6xl px-6 py-8">
      <SkeletonLines lines={5} />
    </div>
  ),
  // A page's file takes some milliseconds: no skeleton flashes for it.
  defaultPendingMs: 150,
  scrollRestoration: true,
})

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
