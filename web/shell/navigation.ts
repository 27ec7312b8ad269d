import {
  Boxes,
  Database,
  FlaskConical,
  Home,
  type LucideIcon,
  MessagesSquare,
  PackageOpen,
  Rocket,
  Settings,
  SlidersHorizontal,
  Wrench,
} from 'lucide-react'
import type { Scope } from '../../contract/scopes.ts'

interface NavigationEntry {
  to: string
  label: string
  icon: LucideIcon
  /** Shown to those who have this scope. */
  scope?: Scope
  /** Only where the address is exactly this. */
  exact?: boolean
}

export const navigation: readonly (readonly NavigationEntry[])[] = [
  [{ to: '/', label: 'Home', icon: Home, exact: true }],
  [
    { to: '/datasets', label: 'Datasets', icon: Database, scope: 'datasets:read' },
    { to: '/jobs', label: 'Jobs', icon: SlidersHorizontal, scope: 'tuning:read' },
    { to: '/playground', label: 'Playground', icon: MessagesSquare, scope: 'inference' },
    { to: '/evaluations', label: 'Evaluations', icon: FlaskConical, scope: 'tuning:read' },
  ],
  [
    { to: '/models', label: 'Models', icon: Boxes, scope: 'hub:read' },
    { to: '/deployments', label: 'Deployments', icon: Rocket, scope: 'deployments:read' },
    { to: '/exports', label: 'Exports', icon: PackageOpen, scope: 'exports:read' },
  ],
  [
    { to: '/settings', label: 'Settings', icon: Settings },
    { to: '/operator', label: 'Operator', icon: Wrench, scope: 'operator' },
  ],
]
