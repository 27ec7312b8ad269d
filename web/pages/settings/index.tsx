import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function SettingsPage() {
  return (
    <Page title="Settings">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
