#include "app/app.h"
#include "app/commands.h"

void app_run(struct app *app)
{
    enum frame_event event;
    while ((event = frame_receive(&app->link, &app->request)) != FRAME_CLOSED) {
        if (event == FRAME_DAMAGED) {
            frame_send(REPLY_DAMAGED, 0, NULL, 0);
            continue;
        }
        /* A repeated command is answered from memory, never executed twice. (Its sequence number is in the CRC.) */
        bool repeated = app->reply_type != 0 && app->request.crc == app->answered_crc;
        app_expect_bulk(app);
        if (!repeated || app->request.type == COMMAND_HELLO) {
            app_execute(app);
            app->answered_crc = app->request.crc;
        }
        app_skip_bulk(app);
        frame_send(app->reply_type, app->request.sequence, app->reply, app->reply_size);
    }
}
